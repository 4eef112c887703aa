"""An attendee's script, checked: a line on the screen for each thing, and the score card."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tfworkshop import data
from tfworkshop.exercises.task import digest, screen
from tfworkshop.exercises.trial import NotYet
from tfworkshop.files import kept_json, save
from tfworkshop.problem import Problem

PASSED, RIGHT, NOT_YET = "passed", "correct, not timed", "not yet"


class Attempt:
    def __init__(self, file: Path, quick: bool, repeats: int, limit: float) -> None:
        self.file, self.quick, self.repeats, self.limit = file, quick, repeats, limit
        self.script = self.folder = Path()  # the copy that is judged, and a place for files
        self.step = "It runs"  # what is being looked at
        self.status = NOT_YET
        self.problem = ""
        self.speeds: dict[str, float] = {}
        self.console = screen()

    # --- on the screen ---

    def doing(self, what: str) -> contextlib.AbstractContextManager:
        return self.console.status(what) if self.console.is_terminal else contextlib.nullcontext()

    def good(self, how: str) -> None:
        self.line("✓", "+", "green", how)

    def line(self, mark: str, plain: str, style: str, how: str) -> None:
        fine = (self.console.encoding or "").lower().startswith("utf")
        grid = Table.grid(padding=(0, 1))
        for width in (1, 24, None):
            grid.add_column(width=width)
        grid.add_row(Text(mark if fine else plain, style), Text(self.step, "bold"), Text(how))
        self.console.print(grid)

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style=style))

    # --- the check ---

    def examine(self, judge: Callable[[], None]) -> bool:
        """Have a copy of the script judged, and keep the outcome; is it right?"""
        details: tuple[str, ...] = ()
        try:
            data.ensure(say=lambda line: None)
            sha = digest(self.file)
            with self.copied():
                judge()
            self.status = RIGHT if self.quick else PASSED
            if self.quick:
                self.say("  Not timed: --quick.", "dim")
        except NotYet as found:
            self.problem, details = str(found), found.details
            self.line("✗", "x", "red", "no")
        except Problem:
            raise
        except Exception as error:  # an attendee's script must not show us up
            told = f"the check itself failed, {type(error).__name__}: {error}"
            raise Problem(told) from None
        self.keep(sha)
        self.say("")
        if self.problem:
            self.say(f"Not yet: {self.problem}", "bold")
        for detail in filter(None, details):
            self.say(f"    {detail}")
        return not self.problem

    @contextlib.contextmanager
    def copied(self) -> Iterator[None]:
        """What is judged is what was there at first."""
        self.folder = Path(tempfile.mkdtemp(prefix="workshop_check_"))
        try:
            self.script = self.folder / self.file.parent.name / self.file.name
            self.script.parent.mkdir()
            for source in [*self.file.parent.glob("*.py"), self.file]:
                if source.is_file():  # an editor's lock is a link to nowhere
                    shutil.copyfile(source, self.script.with_name(source.name))
            yield
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- what is kept ---

    def keep(self, sha: str) -> None:
        kept = {
            "sha256": sha,
            "status": self.status,
            "problem": self.problem,
            "speeds": {name: round(speed, 1) for name, speed in self.speeds.items()},
            "date": datetime.date.today().isoformat(),
        }
        before = read_kept(self.file)
        if not self.speeds and before.get("sha256") == sha:  # --quick forgets nothing
            kept["speeds"] = before["speeds"]
            if self.status == RIGHT and before.get("status") == PASSED:
                kept["status"] = PASSED
        text = json.dumps(kept, indent=1) + "\n"
        save(self.file.with_name("check.json"), lambda part: part.write_text(text))


def read_kept(file: Path) -> dict[str, Any]:
    """The score card; of one that is not ours, what can be used."""
    kept = kept_json(file.with_name("check.json"))
    speeds = kept.get("speeds")
    speeds = speeds if isinstance(speeds, dict) else {}
    numbers = {k: v for k, v in speeds.items() if isinstance(v, (int, float)) and 0 < v < math.inf}
    return {**kept, "speeds": numbers} if kept else {}
