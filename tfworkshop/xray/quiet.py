"""What TensorFlow's C++ side prints by itself, kept off the screen."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def quiet_cpp() -> Iterator[None]:
    """Python still reaches the screen."""
    sys.stderr.flush()
    with Path(os.devnull).open("w") as nowhere, os.fdopen(os.dup(2), "w", 1) as screen:
        os.dup2(nowhere.fileno(), 2)
        try:
            with contextlib.redirect_stderr(screen):
                yield
        finally:
            os.dup2(screen.fileno(), 2)
