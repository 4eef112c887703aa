"""A check of an attendee's script: a line on the screen for each step of it, and the score card."""

from __future__ import annotations

import contextlib
import datetime
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.table import Table
from rich.text import Text

from tfworkshop import data
from tfworkshop.exercises.records import (
    CORRECT,
    NOT_YET,
    PASSED,
    Check,
    check_file,
    read_check,
)
from tfworkshop.exercises.task import digest, narrow_console
from tfworkshop.exercises.trial import NotYet
from tfworkshop.files import display_path, save_record
from tfworkshop.problem import Problem


class Attempt:
    def __init__(self, script: Path, quick: bool, repeats: int, limit: float) -> None:
        self.script = script
        self.quick = quick
        self.repeats = repeats
        self.limit = limit
        self.folder = Path()  # for files, while it is being judged
        self.step = "It runs"  # what is being looked at
        self.speeds: dict[str, float] = {}
        self.console = narrow_console()

    # --- on the screen ---

    def doing(self, what: str) -> contextlib.AbstractContextManager[object]:
        return self.console.status(what)

    def good(self, outcome: str) -> None:
        self._print_step("✓", "green", outcome)

    def _print_step(self, mark: str, style: str, outcome: str) -> None:
        grid = Table.grid(padding=(0, 1))
        for width in (1, 24, None):
            grid.add_column(width=width)
        grid.add_row(Text(mark, style), Text(self.step, "bold"), Text(outcome))
        self.console.print(grid)

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style=style))

    # --- the check ---

    def examine(self, judge: Callable[[], None]) -> bool:
        """Judge the script, print and save the outcome; is it right?"""
        data.ensure(say=lambda line: None)
        sha256 = digest(self.script)
        mistake = None
        with tempfile.TemporaryDirectory(prefix="workshop_check_") as folder:
            self.folder = Path(folder)
            try:
                judge()
            except NotYet as error:
                mistake = error
        if digest(self.script) != sha256:
            raise Problem(f"{display_path(self.script)} was edited during the check: check again")
        self.save(sha256, mistake)
        if mistake:
            self._print_step("✗", "red", "no")
            self.say(f"\nNot yet: {mistake}", "bold")
            for detail in mistake.details:
                self.console.print(Text(detail), soft_wrap=True)
            return False
        if self.quick:
            self.say("  Not timed: --quick.", "dim")
        self.say("")
        return True

    def save(self, sha256: str, mistake: NotYet | None) -> None:
        status = CORRECT if self.quick else PASSED
        if mistake:
            status = NOT_YET
        check = Check(
            sha256=sha256,
            status=status,
            code=mistake.code if mistake else "",
            problem=str(mistake or ""),
            speeds={name: round(speed, 1) for name, speed in self.speeds.items()},
            date=datetime.date.today().isoformat(),
        )
        previous = read_check(self.script)
        if previous and previous.sha256 == sha256 and not check.speeds:  # --quick forgets nothing
            check.speeds = previous.speeds
            if check.status == CORRECT and previous.status == PASSED:
                check.status = PASSED
        save_record(check_file(self.script), check)
