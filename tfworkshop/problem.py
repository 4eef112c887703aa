"""The exception that users see as one line."""

from __future__ import annotations


class Problem(Exception):
    """Something the user can fix: shown as one clear line, never as a traceback."""


class UsageProblem(Problem):
    """A mistake on the command line: ends with status 2, as argparse does."""


def describe(error: BaseException) -> str:
    """An exception as one short line: "FILE: reason" for an OSError, else its own text."""
    reason = getattr(error, "strerror", None)
    filename = getattr(error, "filename", None)
    if reason and filename:
        return f"{filename}: {reason}"
    text = reason or str(error) or type(error).__name__
    return " ".join(text.split())
