"""The tree is linted, formatted and typed; imports point one way."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tfworkshop.stages import ROOT

PACKAGE = ROOT / "tfworkshop"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("words", ["ruff check .", "ruff format --check .", "mypy"])
def test_python(words: str) -> None:
    ended = run(sys.executable, "-m", *words.split())
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_shell() -> None:
    files = [ROOT / name for name in run("git", "ls-files").stdout.splitlines()]
    scripts = [str(path) for path in files if re.match(rb"#!.*/(env )?(ba)?sh", first_line(path))]
    assert str(ROOT / "submit" / "one_rank.sh") in scripts
    ended = run("shellcheck", "-x", "--source-path=SCRIPTDIR", *scripts)
    assert ended.returncode == 0, ended.stdout


def first_line(path: Path) -> bytes:
    return path.read_bytes()[:80] if path.is_file() else b""


# Which subject may import which other one; all may import the modules beside them.
ARROWS = {
    "environment": set(),
    "ideal_gpu": set(),
    "ladder": {"ideal_gpu"},
    "report": set(),
    "profile": {"ideal_gpu", "report"},
    "exercises": {"report"},
    "mysteries": {"report", "exercises"},
    "doctor": {"environment"},
}


def imported(path: Path) -> set[str]:
    """The modules and folders of tfworkshop/ that a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "tfworkshop":
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfworkshop."):
            names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("tfworkshop.")}
    return names


def test_imports_point_one_way() -> None:
    """Command line -> subject -> shared; see tfworkshop/__init__.py."""
    subjects = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert subjects == set(ARROWS)
    for path in PACKAGE.glob("*.py"):
        assert not imported(path) & subjects, path
    for path in PACKAGE.glob("*/*.py"):
        subject = path.parent.name
        assert imported(path) & subjects <= ARROWS[subject] | {subject}, path
        assert "__main__" not in imported(path), path


def test_stages_import_nothing_of_ours() -> None:
    for path in ROOT.glob("0*/*.py"):
        assert "tfworkshop" not in path.read_text(), path
