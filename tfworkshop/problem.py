"""The one exception that users see. Python 3.6 can read it: it is needed before all else."""


class Problem(Exception):
    """Something the user can fix: shown as one clear line, never as a traceback."""


def told(error):
    """An exception as one would say it: the file and the reason, not the number of the error."""
    reason = getattr(error, "strerror", None)
    if not reason:
        return str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason


def reason_of(error):
    """An exception as a short text without line breaks, for the middle of a sentence."""
    inner = getattr(error, "reason", None)  # of a URLError
    if isinstance(inner, Exception):
        error = inner
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]
