"""Stage 01's claim: most of the time goes into fetching data before the fix, and not after it."""

from __future__ import annotations

import linecache
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from line_profiler import load_stats

from tests.conftest import stage_environment
from tools.stages import ROOT

FOLDER = "01_line_profiler"


@pytest.fixture(scope="module")
def images(mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that is read for a batch; few to evaluate with, for that is not what is looked at."""
    path = tmp_path_factory.mktemp("data") / "mnist.npz"
    with np.load(mnist) as full:
        arrays = {name: full[name][: 60000 if "train" in name else 100] for name in full.files}
    np.savez_compressed(path, **arrays)
    return path


def profiled(file: str, images: Path, cwd: Path) -> Path:
    """Run a script under kernprof, as the README says; the profile it leaves."""
    script = ROOT / FOLDER / file
    command = [sys.executable, "-m", "kernprof", "-l", str(script)]
    command += ["--data", str(images), "--steps", "12", "--log-every", "5"]
    process = subprocess.run(
        command, cwd=cwd, env=stage_environment(), capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    return cwd / f"{file}.lprof"


def share_of_fetching(profile: Path, file: str) -> float:
    """How much of train_loop's time its fetch_batch line takes."""
    source = str(ROOT / FOLDER / file)
    stats = load_stats(str(profile))
    (lines,) = [rows for (_, _, name), rows in stats.timings.items() if name == "train_loop"]
    times = {linecache.getline(source, number): time for number, _, time in lines}
    (fetching,) = [time for text, time in times.items() if "fetch_batch(" in text]
    return fetching / sum(times.values())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("file", "lowest", "highest"),
    [("train_MNIST.py", 0.35, 1.0), ("train_MNIST_iofix.py", 0.0, 0.25)],
)
def test_where_the_time_goes(
    file: str, lowest: float, highest: float, images: Path, tmp_path: Path
) -> None:
    share = share_of_fetching(profiled(file, images, tmp_path), file)
    assert lowest < share < highest
