"""The result of a check, and how it looks on the terminal."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass

COLOURS = {"ok": "32", "warn": "33", "fail": "31"}
WIDTH = 100
INDENT = " " * 18  # the text begins after the status and the name


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


def has_failure(findings: list[Finding]) -> bool:
    return any(finding.status == "fail" for finding in findings)


def as_text(finding: Finding, colour: bool = False) -> str:
    """The finding with its fix below, wrapped; commands and paths are never broken."""
    text = _wrap(finding.what, f"{finding.status:<6}{finding.check:<12}", INDENT)
    if colour:
        escaped = f"\x1b[{COLOURS[finding.status]}m{finding.status}\x1b[0m"
        text = escaped + text.removeprefix(finding.status)
    if finding.fix:
        text += "\n" + _wrap(finding.fix, f"{INDENT}-> ", f"{INDENT}   ")
    return text


def _wrap(text: str, first: str, rest: str) -> str:
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    return textwrap.fill(
        text,
        min(WIDTH, columns),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
