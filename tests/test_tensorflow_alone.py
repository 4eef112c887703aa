"""The stages where there is only TensorFlow and what comes with it, as in a site's module."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LOG_LINE, SCRIPTS, stage_environment
from tfworkshop.environment.venv import installed_requirements
from tfworkshop.files import cache_folder
from tfworkshop.stages import ROOT

# One process imports TensorFlow; each script runs in a fork of it.
RUN_EACH = """\
import os, runpy, sys
import keras, tensorflow

words = sys.argv[1:]
for script in words.pop(0).split(","):
    child = os.fork()
    if child == 0:
        sys.argv = [script, *words]
        runpy.run_path(script, run_name="__main__")
    status = os.waitpid(child, 0)[1]
    print(script, "ended with", os.waitstatus_to_exitcode(status), flush=True)
"""


def make_environment(folder: Path, requirement: str) -> Path:
    cache = cache_folder()
    uv = shutil.which("uv") or str(cache / "uv" / "bin" / "uv")
    env = {**os.environ, "UV_CACHE_DIR": str(cache / "uv-cache")}
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder], env=env, check=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [uv, "pip", "install", "-q", "--python", python, requirement], env=env, check=True
    )
    return python


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_stage_runs(small: Path, tmp_path: Path) -> None:
    (requirement,) = (pin for pin in installed_requirements() if pin.startswith("tensorflow-cpu=="))
    python = make_environment(tmp_path / "venv", requirement)
    scripts = [str(ROOT / folder / file) for folder, file in SCRIPTS]
    options = ["--data", small, "--steps", "12", "--batch-size", "8"]
    ended = subprocess.run(
        [python, "-c", RUN_EACH, ",".join(scripts), *options],
        env=stage_environment(PYTHONUNBUFFERED="1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    for script in scripts:
        assert f"{script} ended with 0\n" in ended.stdout, ended.stderr
    assert len(LOG_LINE.findall(ended.stdout)) == 12 * len(scripts)
    for package in ("horovod", "line_profiler", "rich", "msgspec", "matplotlib"):
        assert not list((tmp_path / "venv").rglob(f"site-packages/{package}"))


def test_choosing_needs_the_standard_library_only() -> None:
    words = [sys.executable, "-I", "-S", ROOT / "06_optimized" / "choose.py", "--help"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
