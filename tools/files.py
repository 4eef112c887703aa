"""Where results go, and writing whole files or none."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.problem import Problem
from tools.stages import ROOT


def results_path() -> Path:
    """Where results and profiles go; it may not be there yet."""
    return Path(os.environ.get("WORKSHOP_RESULTS") or ROOT / "results")


def results_folder() -> Path:
    folder = results_path()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_writable(file: Path) -> None:
    """Report a bad output path before the work, not after it."""
    if file.exists() and not file.is_file():  # renaming over /dev/null would destroy it
        raise Problem(f"{file} is {'a folder' if file.is_dir() else 'not a file'}: name a file")
    if not file.parent.is_dir():
        raise Problem(f"cannot write {file}: there is no folder {file.parent}")
    if not os.access(file.parent, os.W_OK):
        raise Problem(f"cannot write {file}: the folder {file.parent} is not writable")


def save(path: Path, write_to: Callable[[Path], object]) -> None:
    """Write elsewhere, then rename: a reader never sees half a file. A link stays a link."""
    path = path.resolve()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:  # nobody else's
        part = Path(folder) / path.name
        write_to(part)
        part.replace(path)


def read_json(path: Path) -> dict:
    """What one of our own files holds; a Problem where it is none, whatever it is."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError("not a file")
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Problem(f"there is no {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise Problem(f"{path} is not a results file ({error})") from None
    if not isinstance(found, dict):
        raise Problem(f"{path} is not a results file")
    return found


@contextlib.contextmanager
def measuring(folder: Path) -> Iterator[None]:
    """One measurement at a time: two would slow each other down, and mix their results."""
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Problem(
                f"another ./workshop is measuring into {folder}: wait for it, or stop it"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
