"""The one exception that users see. Python 3.6 can read it: it is needed before all else."""


class Problem(Exception):
    """Something the user can fix: shown as one clear line, never as a traceback."""
