"""What a check found, and how it is shown."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from dataclasses import dataclass

COLOURS = {"ok": "32", "warn": "33", "fail": "31"}
WIDTH = 100
INDENT = 18  # where the text begins, after the status and the name


@dataclass(frozen=True)
class Finding:
    check: str
    status: str  # ok, warn (works, but not as well as it could) or fail
    what: str
    fix: str = ""  # what to type or to change; empty if all is well


def ok(check: str, what: str) -> Finding:
    return Finding(check, "ok", what)


def warn(check: str, what: str, fix: str) -> Finding:
    return Finding(check, "warn", what, fix)


def fail(check: str, what: str, fix: str) -> Finding:
    return Finding(check, "fail", what, fix)


def as_text(finding: Finding, colour: bool = False, width: int = WIDTH) -> str:
    """The line of a finding, wrapped, and its fix below."""
    head = f"{finding.status:<5} {finding.check:<11} "
    lines = wrapped(finding.what, width)
    if finding.fix:
        lines += [
            "-> " + line if i == 0 else "   " + line
            for i, line in enumerate(wrapped(finding.fix, width - 3))
        ]
    text = head + ("\n" + " " * INDENT).join(lines)
    if colour:
        status = finding.status
        text = f"\x1b[{COLOURS[status]}m{status}\x1b[0m" + text[len(status) :]
    return text


def wrapped(text: str, width: int) -> list[str]:
    """Lines that never break inside a word: a command or a path stays whole."""
    room = max(width - INDENT, 30)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def terminal_width() -> int:
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
