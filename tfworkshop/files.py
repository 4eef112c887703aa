"""Where results go; writing whole files or none; reading files that may be anything."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from tfworkshop.problem import Problem, told
from tfworkshop.stages import ROOT

ROOM = 1 << 23  # bytes that a measurement needs on the disk
PATIENCE_S = 30.0  # with a file system that does not answer
# What reading a file of another content than ours leads to.
WRONG_SHAPE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


def shown(path: Path | str) -> str:
    """Relative to the repository if it is inside."""
    path = Path(path)
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def results_path() -> Path:
    """Where results and profiles go; it may not be there yet."""
    return Path(os.environ.get("WORKSHOP_RESULTS") or ROOT / "results").absolute()


def results_folder() -> Path:
    folder = results_path()
    with writing_results():
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def writing_results() -> Iterator[None]:
    """A full or read-only disk is one line that says what to type."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        again = "make room, or name another folder: WORKSHOP_RESULTS=FOLDER ./workshop ..."
        raise Problem(f"cannot write to {results_path()} ({told(error)}); {again}") from None


def check_writable(file: Path, begins: bytes = b"") -> None:
    """Report a bad output path before the work, not after it; what is not ours is not replaced."""
    if file.exists() and not file.is_file():  # renaming over /dev/null would destroy it
        raise Problem(f"{file} is {'a folder' if file.is_dir() else 'not a file'}: name a file")
    if not file.parent.is_dir():
        raise Problem(f"cannot write {file}: there is no folder {file.parent}")
    if not os.access(file.parent, os.W_OK):
        raise Problem(f"cannot write {file}: the folder {file.parent} is not writable")
    if begins and file.exists():
        with file.open("rb") as old:
            if old.read(len(begins)) not in (begins, b""):
                raise Problem(f"{file} is there, and something else: name another file")


def save(path: Path, write_to: Callable[[Path], object]) -> None:
    """Write elsewhere, then rename: a reader never sees half a file. A link stays a link."""
    try:
        path = path.resolve()
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:  # nobody else's
            part = Path(folder) / path.name
            write_to(part)
            part.replace(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: links that go round in circles
        reason = getattr(error, "strerror", None) or error
        raise Problem(f"cannot write {path} ({reason}): make room, or remove it") from None


class NoAnswer(Problem):
    """From a file system that is not there any more, say."""


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """What the call returns or raises; NoAnswer where it does neither in time: it may never."""
    answers: queue.Queue[Any] = queue.Queue()

    def ask() -> None:
        try:
            answers.put((call(), None))
        except Exception as error:  # raised again below, in the waiting thread
            answers.put((None, error))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise NoAnswer(f"no answer in {seconds:g} s") from None
    if error:
        raise error
    return answer


def in_time(call: Callable[[], Any], path: Path) -> Any:
    """The same of a call that reads a file."""
    try:
        return within(PATIENCE_S, call)
    except NoAnswer as problem:
        raise NoAnswer(f"{path}: {problem}. Is its file system there?") from None


def no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def read_json(path: Path) -> dict:
    """What one of our own files holds; a Problem where it is none, whatever it is."""

    def load() -> Any:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ValueError("not a file")
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=no_number)

    try:
        found = in_time(load, path)
    except FileNotFoundError:
        raise Problem(f"there is no {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Problem(f"{path} is not a results file ({reason})") from None
    if not isinstance(found, dict):
        raise Problem(f"{path} is not a results file")
    return found


def kept_json(path: Path) -> dict:
    """The same of what is only remembered: empty where it is not ours."""
    try:
        return read_json(path)
    except Problem:
        return {}


@contextlib.contextmanager
def measuring(folder: Path) -> Iterator[None]:
    """One measurement at a time: two would slow each other down, and mix their results."""
    with writing_results():
        # Not through a link, nor into a pipe.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        lock = os.open(folder / ".lock", flags, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Problem(
            f"another ./workshop is measuring into {folder}: wait for it, or stop it"
        ) from None
    except OSError:
        pass  # a file system without locks
    try:
        with writing_results(), tempfile.TemporaryFile(dir=folder) as room:
            room.write(bytes(ROOM))
            room.flush()
        yield
    finally:
        os.close(lock)
