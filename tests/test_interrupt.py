"""Ctrl+C, or a batch system's SIGTERM, is a normal way to stop: summary, results, exit 130."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import (
    FIXED,
    LOG_LINE,
    ROOT,
    files_in,
    load_script,
    read_results,
    run_main,
    said,
    script_id,
    stage_environment,
    stages,
)

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)


@contextmanager
def training(folder: str, cwd: Path, *options: object) -> Iterator[subprocess.Popen[str]]:
    """A stage at work, far from its end."""
    command = [sys.executable, str(ROOT / folder / "train_MNIST.py"), *map(str, options)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=cwd, env=stage_environment(), stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def stop_after(process: subprocess.Popen[str], lines: int, number: int) -> tuple[str, str]:
    """Send the signal once some steps are logged; stdout and stderr, all of it."""
    assert process.stdout and process.stderr
    seen = ""
    while len(LOG_LINE.findall(seen)) < lines:
        line = process.stdout.readline()
        assert line, "it ended by itself"
        seen += line
    process.send_signal(number)
    limit = threading.Timer(60, process.kill)
    limit.start()
    seen += process.stdout.read()  # not communicate(): what readline() read ahead would be lost
    stderr = process.stderr.read()
    process.wait()
    limit.cancel()
    return seen, stderr


@SIGNALS
@pytest.mark.parametrize("script", stages("02", "06"), ids=script_id)
def test_stopping_is_normal(script, number, small, tmp_path) -> None:
    options = ["--data", small, "--epochs", 1000, "--batch-size", 16, "--results", "out/r.json"]
    options += FIXED if script in stages("06") else []
    with training(script[0], tmp_path, *options) as process:
        stdout, stderr = stop_after(process, 12, number)
    assert (process.returncode, said(stderr)) == (130, [])
    results = read_results(tmp_path / "out" / "r.json")
    logged = list(LOG_LINE.finditer(stdout))
    assert results["interrupted"] is True
    assert results["test_accuracy"] is None
    # a step (in 06 a call) may end just before the signal and not be logged any more
    unlogged = results["warmup_steps"] + results["steps_timed"] - len(logged)
    assert 0 <= unlogged <= (50 if script[0].startswith("06") else 1)
    assert "Traceback" not in stdout and stdout.splitlines()[-1].split() == ["interrupted", "True"]
    assert files_in(tmp_path) == {"out/r.json"}


def test_a_profile_survives_its_interruption(small, tmp_path) -> None:
    options = ["--data", small, "--epochs", 1000, "--batch-size", 16, "--results", "r.json"]
    options += ["--logdir", "logs", "--profile-steps", 3, 30_000]
    with training("04_tf_profiler", tmp_path, *options) as process:
        _, stderr = stop_after(process, 8, signal.SIGINT)
    assert (process.returncode, said(stderr)) == (130, [])
    assert read_results(tmp_path / "r.json")["interrupted"] is True
    (profile,) = tmp_path.glob("logs/plugins/profile/*/*.xplane.pb")
    assert profile.stat().st_size > 10_000


@pytest.mark.parametrize("script", stages("00", "02", "06"), ids=script_id)
@pytest.mark.parametrize("place", ["get_dataset", "train_loop", "evaluate"])
def test_stopping_anywhere_is_no_crash(script, place, small, tmp_path, monkeypatch) -> None:
    """A real signal at the worst moments is heeded after the step."""
    monkeypatch.chdir(tmp_path)
    module = load_script(script)
    original = getattr(module, place)

    def interrupted(*args: object) -> object:
        monkeypatch.setattr(module, place, original)
        signal.raise_signal(signal.SIGINT)
        return original(*args)

    monkeypatch.setattr(module, place, interrupted)
    ended = run_main(
        module, "--data", small, "--batch-size", 16, "--steps", 3, "--results", "r.json"
    )
    assert "Traceback" not in ended.stderr and len(said(ended.stderr)) <= 1
    assert ended.status == 130
    assert read_results(tmp_path / "r.json")["interrupted"] is True


def test_stopping_while_it_starts_is_no_crash(small, tmp_path) -> None:
    """Most of a short run is the import of TensorFlow: a likely moment for Ctrl+C."""
    for delay in (0.5, 1.5):
        with training("02_tf_function", tmp_path, "--data", small) as process:
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode in (130, -signal.SIGINT)
        assert "Traceback" not in stderr
