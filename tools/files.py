"""Where results go, and writing whole files or none."""

from __future__ import annotations

import os
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


def save(path: Path, write_to) -> None:
    """Write elsewhere, then rename: a reader never sees half a file. A link stays a link."""
    path = path.resolve()
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        write_to(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
