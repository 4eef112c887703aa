"""The formatter and the linter agree with the whole tree; imports of tfworkshop/ point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tfworkshop.stages import ROOT


@pytest.mark.parametrize("words", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff(words: list[str]) -> None:
    command = [sys.executable, "-m", "ruff", *words, "."]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


# Which subject may import which other one; all may import what lies beside them.
ARROWS = {
    "environment": set(),
    "ladder": set(),
    "report": set(),
    "xray": set(),
    "exercises": {"report"},
    "mysteries": {"report", "xray", "exercises"},
    "doctor": {"environment"},
}


def imported(path: Path) -> set[str]:
    """The modules and packages right below tfworkshop/ that a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "tfworkshop":
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfworkshop."):
            names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("tfworkshop.")}
    return names


def test_imports_of_tools_point_one_way() -> None:
    """Command line -> subject -> shared; see tfworkshop/__init__.py."""
    tools = ROOT / "tfworkshop"
    subjects = {path.parent.name for path in tools.glob("*/__init__.py")}
    assert subjects == set(ARROWS)
    for path in tools.glob("*.py"):
        assert not imported(path) & subjects, path
    for path in tools.glob("*/*.py"):
        subject = path.parent.name
        assert imported(path) & subjects <= ARROWS[subject] | {subject}, path
        assert "__main__" not in imported(path), path
    names = [path.stem for path in tools.rglob("*.py") if path.stem not in ("__init__", "command")]
    assert sorted(names) == sorted(set(names))  # a name says it, and once
