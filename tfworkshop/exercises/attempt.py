"""A check of an attendee's script: a line on the screen for each step of it, and the score card."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tfworkshop import data
from tfworkshop.exercises.records import CORRECT, NOT_YET, PASSED, Check, check_file, read_check
from tfworkshop.exercises.task import digest
from tfworkshop.exercises.trial import NotYet
from tfworkshop.files import save_record
from tfworkshop.terminal import console


class Attempt:
    def __init__(self, script: Path, quick: bool, repeats: int, limit: float) -> None:
        self.script = script
        self.quick = quick
        self.repeats = repeats
        self.limit = limit
        self.folder = Path()  # for files, while it is being judged
        self.step = "It runs"  # what is being looked at
        self.speeds: dict[str, float] = {}
        self.console = console()

    def good(self, outcome: str) -> None:
        self.console.print(f"✓ {self.step:<24} {outcome}", style="green")

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
        self.save(sha256, mistake)
        if mistake:
            self.console.print(f"✗ {self.step}", style="red")
            self.console.print(f"\nNot yet: {mistake}", style="bold")
            for detail in mistake.details:
                self.console.print(detail, soft_wrap=True)
            return False
        if self.quick:
            self.console.print("  Not timed: --quick.", style="dim")
        self.console.print()
        return True

    def save(self, sha256: str, mistake: NotYet | None) -> None:
        code, status = "", PASSED
        if mistake:
            code, status = mistake.code, NOT_YET
        elif self.quick:
            previous = read_check(self.script)
            if previous and previous.sha256 == sha256 and previous.status == PASSED:
                return  # it has been timed already
            status = CORRECT
        save_record(check_file(self.script), Check(sha256, status, code, self.speeds))
