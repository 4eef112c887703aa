"""The formatter and the linter agree with the whole tree."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.stages import ROOT


@pytest.mark.parametrize("words", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff(words: list[str]) -> None:
    command = [sys.executable, "-m", "ruff", *words, "."]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
