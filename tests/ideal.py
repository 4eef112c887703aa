"""The ideal GPU for tests: its environment, made by ./workshop if it is missing."""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import stage_environment
from tfworkshop.ideal_gpu import build
from tfworkshop.stages import ROOT


@functools.cache
def ideal_python() -> Path:
    """The Python whose TensorFlow is built for GPUs; skips where there can be none."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the ideal GPU needs Linux on x86_64")
    python = Path(f"{sys.prefix}-ideal-gpu", "bin", "python")
    if not python.exists():
        subprocess.run([ROOT / "workshop", "setup", "--ideal-gpu"], check=True, env=workshop_env())
    return python


def workshop_env() -> dict[str, str]:
    """As ./workshop expects it: the tests' own environment is its .venv."""
    return {**stage_environment(), "WORKSHOP_VENV": sys.prefix}


def ideal_env(**extra: str) -> dict[str, str]:
    """Variables with which ideal_python() finds the device."""
    return build.environment(ideal_python(), {**stage_environment(), **extra})
