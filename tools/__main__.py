"""What `./workshop` runs once there is an environment: one command of tools/commands.py."""

from __future__ import annotations

import io
import os
import signal
import sys

from tools import commands
from tools.problem import Problem
from tools.stages import UnknownStage


def main(argv: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):  # like Ctrl+C: no stage keeps running
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):  # an encoding without a bar or an ellipsis
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return commands.call(argv)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except ModuleNotFoundError as error:
        print(f"workshop: {error}. Type: ./workshop doctor", file=sys.stderr)
        return 1
    except (Problem, OSError) as problem:  # OSError: a folder that cannot be written, say
        print(f"workshop: {problem}", file=sys.stderr)
        return 2 if isinstance(problem, UnknownStage) else 1
    except KeyboardInterrupt:
        print("\nworkshop: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
