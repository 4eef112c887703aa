"""Speed is worth nothing if the network does not learn: a whole epoch of real MNIST."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import LAST, load_script, read_results, run_main


@pytest.mark.timeout(600)
def test_it_learns(mnist: Path, tmp_path: Path) -> None:
    """By the last stage, the furthest from 00; that all take the same steps is tested elsewhere."""
    results = tmp_path / "r.json"
    options = ["--data", mnist, "--epochs", 1, "--log-every", 100, "--results", results]
    ended = run_main(load_script(LAST), *options, "--precision", "float32")
    assert ended.status == 0, ended.stderr
    told = read_results(results)
    assert told["data"] == "mnist"
    assert told["steps_timed"] + told["warmup_steps"] == 60000 // 64
    assert told["test_accuracy"] >= 0.98
