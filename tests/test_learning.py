"""Speed is worth nothing if the network does not learn: a whole epoch of real MNIST."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import LAST, read_results, run_script


@pytest.mark.slow
@pytest.mark.both_stacks
@pytest.mark.timeout(600)
def test_it_learns(mnist: Path, warm_python: Path, tmp_path: Path) -> None:
    """By the last stage, the furthest from 00; that all take the same steps is tested elsewhere."""
    options = ["--data", mnist, "--epochs", 1, "--log-every", 100, "--precision", "float32"]
    options += ["--results", "r.json"]
    process = run_script(LAST, *options, cwd=tmp_path, python=warm_python)
    assert process.returncode == 0, process.stderr
    results = read_results(tmp_path / "r.json")
    assert results["data"] == "mnist"
    assert results["steps_timed"] + results["warmup_steps"] == 60000 // 64
    assert results["test_accuracy"] >= 0.98
