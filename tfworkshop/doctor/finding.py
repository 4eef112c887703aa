"""What a check found, and how it is shown."""

from __future__ import annotations

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
    """The line of a finding, wrapped, and its fix below; a command or a path stays whole."""
    status, left = finding.status, " " * INDENT
    whole = {"break_long_words": False, "break_on_hyphens": False}
    indents = {"initial_indent": left, "subsequent_indent": left}
    what = textwrap.fill(finding.what, max(width, INDENT + 30), **indents, **whole)
    head = f"\x1b[{COLOURS[status]}m{status}\x1b[0m" if colour else status
    text = head + " " * (6 - len(status)) + f"{finding.check:<11} " + what[INDENT:]
    if finding.fix:
        indents = {"initial_indent": f"{left}-> ", "subsequent_indent": f"{left}   "}
        text += "\n" + textwrap.fill(finding.fix, max(width, INDENT + 33), **indents, **whole)
    return text
