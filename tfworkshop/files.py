"""Files: where results go, writing them whole, reading our own JSON."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from tfworkshop.problem import Problem, describe
from tfworkshop.stages import ROOT

Record = TypeVar("Record")


def display_path(path: Path) -> str:
    """Relative to the working directory if it is below it."""
    path = path.absolute()
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def cache_folder() -> Path:
    return Path(os.environ.get("WORKSHOP_CACHE") or ROOT / ".cache").absolute()


def results_folder() -> Path:
    """Where results and profiles go."""
    folder = Path(os.environ.get("WORKSHOP_RESULTS") or ROOT / "results").absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Problem(
            f"cannot write to {folder} ({error.strerror}); "
            "name another folder: WORKSHOP_RESULTS=FOLDER ./workshop ..."
        ) from None
    return folder


# --- writing ---


def check_output_file(file: Path, suffix: str) -> None:
    """Refuse a bad output path before the work, not after it.

    The suffix keeps a slip of the pen from replacing a script or a profile.
    """
    if not file.name.endswith(suffix):
        raise Problem(f"{file}: the name must end in {suffix}")
    if file.is_dir():
        raise Problem(f"{file} is a folder: name a file")
    if not file.absolute().parent.is_dir():
        raise Problem(f"cannot write {file}: there is no folder {file.parent}")
    if not os.access(file.absolute().parent, os.W_OK):
        raise Problem(f"cannot write {file}: the folder {file.parent} is not writable")


def save(path: Path, write_to: Callable[[Path], object]) -> None:
    """Have a file written elsewhere, then rename it: nobody ever sees half a file."""
    path = path.resolve()  # a link stays a link
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".saving-") as folder:
            part = Path(folder) / path.name
            write_to(part)
            part.replace(path)
    except OSError as error:
        raise Problem(f"cannot write {path} ({error.strerror or error})") from None


def save_text(path: Path, text: str) -> None:
    save(path, lambda part: part.write_text(text, encoding="utf-8"))


def save_record(path: Path, record: object) -> None:
    """A record (a msgspec.Struct, or plain dicts and lists) as indented JSON."""
    save_text(path, msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n")


# --- reading our own JSON ---


def read_record(path: Path, kind: type[Record]) -> Record:
    """One of our own files, checked against its type; a Problem that says what is wrong with it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise Problem(f"there is no {display_path(path)}") from None
    except (OSError, msgspec.DecodeError, UnicodeError) as error:
        raise Problem(f"{display_path(path)} cannot be read: {describe(error)}") from None


def read_cached(path: Path, kind: type[Record]) -> Record | None:
    """The same for what can be made again: None if it is missing or not as expected."""
    try:
        return read_record(path, kind)
    except Problem:
        return None


# --- one at a time ---


@contextlib.contextmanager
def measuring(folder: Path) -> Iterator[None]:
    """One measurement at a time: two would slow each other down, and mix their results."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Problem(
                f"another ./workshop is measuring into {folder}: wait for it, or stop it"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
