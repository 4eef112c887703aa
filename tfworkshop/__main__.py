"""What `./workshop` runs: one command. Here, and only here, an exception becomes a line."""

from __future__ import annotations

import os
import signal
import sys

if not __package__:  # ./workshop starts this file: the package comes before the working directory
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120

from tfworkshop import commands
from tfworkshop.problem import Problem, UsageProblem, describe


def advise(error: ImportError) -> str:
    """What is missing, and what puts it back."""
    if sys.prefix == sys.base_prefix:
        return (
            f"{error}. Install it for {sys.executable} (requirements.txt has the versions), or set "
            "WORKSHOP_PYTHON_ENV=venv to use an environment of its own"
        )
    return f"{error}. Type: ./workshop setup; if that does not help, rm -r {sys.prefix} before it"


def main(argv: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):  # like Ctrl+C: nothing is left running
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, signal.default_int_handler)
    try:
        status = commands.call(argv)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        message, status = "interrupted", 130
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's last flush
        return 141
    except ImportError as error:
        message, status = advise(error), 1
    except UsageProblem as problem:
        message, status = str(problem), 2
    except Problem as problem:
        message, status = str(problem), 1
    except OSError as error:
        message, status = describe(error), 1
    print(f"workshop: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
