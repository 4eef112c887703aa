"""Speed is worth nothing if the network does not learn: one epoch of real MNIST."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import run_script


@pytest.mark.timeout(600)
@pytest.mark.parametrize("folder", ["02_tf_function", "06_optimized"])
def test_one_epoch_reaches_98_percent(folder: str, mnist: Path, tmp_path: Path) -> None:
    options = ["--data", mnist, "--epochs", 1, "--log-every", 100, "--results", "r.json"]
    process = run_script((folder, "train_MNIST.py"), *options, cwd=tmp_path, timeout=590)
    assert process.returncode == 0, process.stderr
    results = json.loads((tmp_path / "r.json").read_text())
    assert results["data"] == "mnist"
    assert results["steps_timed"] + results["warmup_steps"] == 60000 // 64
    assert results["test_accuracy"] >= 0.98
