"""What is being done, on stderr. Python 3.6 can read it: it is needed before all else."""

import shutil
import sys
import time

PLAIN_EVERY_S = 15.0  # between lines where the output is not a terminal


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class ProgressLine:
    """One line that is rewritten on a terminal; now and then a plain line elsewhere."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.started = self.last_plain = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def show(self, doing: str) -> None:
        now = time.monotonic()
        text = f"{self.title}: {now - self.started:.0f} s  {doing}".rstrip()
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[2K{text[:width]}", end="", file=sys.stderr, flush=True)
        elif now - self.last_plain >= PLAIN_EVERY_S:
            self.last_plain = now
            say(text)

    def clear(self) -> None:
        if self.terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
