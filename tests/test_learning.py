"""Speed is worth nothing if the network does not learn: whole epochs of real MNIST."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import run_script


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("folder", "epochs", "accuracy"),
    [("02_tf_function", 1, 0.98), ("06_optimized", 1, 0.985), ("06_optimized", 3, 0.99)],
)
def test_it_learns(folder: str, epochs: int, accuracy: float, mnist: Path, tmp_path: Path) -> None:
    options = ["--data", mnist, "--epochs", epochs, "--log-every", 100, "--results", "r.json"]
    process = run_script((folder, "train_MNIST.py"), *options, cwd=tmp_path, timeout=590)
    assert process.returncode == 0, process.stderr
    results = json.loads((tmp_path / "r.json").read_text())
    assert results["data"] == "mnist"
    assert results["steps_timed"] + results["warmup_steps"] == epochs * (60000 // 64)
    assert results["test_accuracy"] >= accuracy
