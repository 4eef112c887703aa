"""What `./workshop` runs once there is an environment: one command of tfworkshop/commands.py."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys

from tfworkshop import commands
from tfworkshop.problem import Problem, told
from tfworkshop.stages import UnknownStage


def prepare_streams() -> None:
    """All three are open (`>&-` closes one), and no encoding lacks a bar or an ellipsis."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(text: object) -> None:
    """On stderr, if anybody reads it; without a terminal's control characters."""
    line = "".join(letter for letter in str(text) if letter.isprintable() or letter == "\n")
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def close_output() -> None:
    """If it cannot be written, Python would try again at its end, and say more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def missing(error: ImportError) -> str:
    """What repairs it; a package whose files are gone only in part looks installed to pip."""
    doctor = "./workshop doctor says what is wrong here"
    if sys.prefix == sys.base_prefix:
        return f"{error}. {doctor}"
    again = f"./workshop setup puts it back, or else rm -r {sys.prefix} && ./workshop setup"
    return f"{error}. {doctor}; {again}"


def main(argv: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):  # like Ctrl+C: no stage keeps running
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, signal.default_int_handler)
    prepare_streams()
    try:
        status = commands.call(argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head` has seen enough
        close_output()
        return 141
    except ImportError as error:
        say(f"workshop: {missing(error)}")
        return 1
    except (Problem, OSError) as problem:  # OSError: a folder that cannot be written, say
        close_output()
        output = isinstance(problem, OSError) and not problem.filename
        say(f"workshop: {'cannot write the output: ' * output}{told(problem)}")
        return 2 if isinstance(problem, UnknownStage) else 1
    except KeyboardInterrupt:
        close_output()
        say("\nworkshop: interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
