"""What the tests share: real MNIST, a small set, and ways to run a stage or to import it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tools import data
from tools.stages import ROOT, STAGES

# Every script of the ladder, as (folder, file): 01 has two.
SCRIPTS = [
    (stage.folder, file.name)
    for stage in STAGES
    for file in sorted((ROOT / stage.folder).glob("train_MNIST*.py"))
]


def script_id(script: tuple[str, str]) -> str:
    return f"{script[0][:2]}-{Path(script[1]).stem}"


@pytest.fixture(scope="session")
def mnist() -> Path:
    """Real MNIST, fetched if it is not there yet."""
    data.ensure(say=lambda line: None)
    return data.DEFAULT_PATH


@pytest.fixture(scope="session")
def small(mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first images of MNIST: quick to read, even for every batch."""
    with np.load(mnist) as full:
        sizes = {"x_train": 2048, "y_train": 2048, "x_test": 512, "y_test": 512}
        arrays = {name: full[name][:size] for name, size in sizes.items()}
    path = tmp_path_factory.mktemp("data") / "small.npz"
    np.savez_compressed(path, **arrays)
    return path


def stage_environment(**extra: str) -> dict[str, str]:
    """This environment without what a launcher, a batch job or a user may have set."""
    drop = ("HOROVOD", "OMPI_", "PMI_", "SLURM_", "MNIST_NPZ", "CUDA_VISIBLE", "LINE_PROFILE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    return {**kept, **extra}


def run_script(
    script: tuple[str, str], *options: object, cwd: Path, timeout: float = 300, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run a stage as a reader would: plain python, in its own process."""
    command = [sys.executable, str(ROOT / script[0] / script[1]), *map(str, options)]
    return subprocess.run(
        command,
        cwd=cwd,
        env=stage_environment(**extra),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def load_script(script: tuple[str, str]) -> ModuleType:
    """A stage as a module, for tests of its functions."""
    path = ROOT / script[0] / script[1]
    spec = importlib.util.spec_from_file_location(f"{script[0]}_{path.stem}".lstrip("0"), path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
