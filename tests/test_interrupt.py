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
    LAST,
    LOG_LINE,
    ROOT,
    files_in,
    load_script,
    losses,
    read_results,
    run_main,
    said,
    script_id,
    stage_environment,
    stages,
)

Script = tuple[str, str]


@contextmanager
def training(script: Script, cwd: Path, *options: object) -> Iterator[subprocess.Popen[str]]:
    """A stage at work, far from its end."""
    command = [sys.executable, str(ROOT / script[0] / script[1]), *map(str, options)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=cwd, env=stage_environment(), stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def stop_after(process: subprocess.Popen[str], lines: int, *numbers: int) -> tuple[str, str]:
    """Send the signals once some steps are logged; stdout and stderr, all of it."""
    assert process.stdout and process.stderr
    seen = ""
    while len(LOG_LINE.findall(seen)) < lines:
        line = process.stdout.readline()
        assert line, "it ended by itself"
        seen += line
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.2)  # two at once are one
    limit = threading.Timer(60, process.kill)
    limit.start()
    seen += process.stdout.read()  # not communicate(): what readline() read ahead would be lost
    stderr = process.stderr.read()
    process.wait()
    limit.cancel()
    return seen, stderr


# Which stage, the steps logged before the signals, the signals, and the steps to profile.
CASES = {
    "02 SIGTERM": (stages("02")[0], 12, [signal.SIGTERM], None),
    "04 profiled": (stages("04")[0], 8, [signal.SIGINT], (3, 1000)),
    "06 twice, profiled": (LAST, 8, 3 * [signal.SIGINT], (3, 1000)),
    "06 SIGINT": (LAST, 30, [signal.SIGINT], None),
}


@pytest.mark.parametrize("case", CASES)
def test_stopping_is_normal(case: str, small, tmp_path) -> None:
    script, lines, signals, window = CASES[case]
    options = ["--data", small, "--epochs", 1000, "--batch-size", 16, "--results", "out/r.json"]
    options += ["--logdir", "logs", "--profile-steps", *window] if window else []
    with training(script, tmp_path, *options) as process:
        stdout, stderr = stop_after(process, lines, *signals)
    # Python forgets its handlers at the very end: a late signal then kills it, with all written.
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    assert (status, said(stderr)) == (130, [])
    results = read_results(tmp_path / "out" / "r.json")
    assert results["interrupted"] is True and results["test_accuracy"] is None
    assert stdout.splitlines()[-1] == f"final_loss      {results['final_loss']}"
    assert "Traceback" not in stdout
    logged = len(LOG_LINE.findall(stdout))
    assert results["warmup_steps"] + results["steps_timed"] == min(logged, 10 if window else logged)
    left = files_in(tmp_path)
    assert len(left) == (2 if window else 1), left
    if window:
        (profile,) = tmp_path.glob("logs/plugins/profile/*/*.xplane.pb")
        assert profile.stat().st_size > 10_000


@pytest.mark.parametrize("script", [*stages("00", "02", "04"), LAST], ids=script_id)
@pytest.mark.parametrize("place", ["get_dataset", "fetch_batch", "evaluate"])
def test_stopping_anywhere_in_the_training(script, place, small, tmp_path, monkeypatch) -> None:
    """A real signal at the worst moments is heeded after the step."""
    monkeypatch.chdir(tmp_path)
    module = load_script(script)
    original = getattr(module, place)

    def interrupted(*args: object) -> object:
        setattr(module, place, original)
        signal.raise_signal(signal.SIGINT)
        return original(*args)

    setattr(module, place, interrupted)
    options = ["--data", small, "--batch-size", 16, "--steps", 3, "--results", "r.json"]
    ended = run_main(module, *options)
    assert (ended.status, ended.stderr) == (130, "")
    results = read_results(tmp_path / "r.json")
    assert results["interrupted"] is True
    assert results["warmup_steps"] == len(losses(ended.stdout)) == (3 if place == "evaluate" else 1)
    assert (results["test_accuracy"] is None) == (place != "evaluate")


def test_once_is_enough(small, tmp_path, monkeypatch) -> None:
    """More signals while the summary is made, from another thread, as a launcher's may come."""
    monkeypatch.chdir(tmp_path)
    module = load_script(stages("02")[0])
    get_dataset, summarize = module.get_dataset, module.summarize

    def interrupted(*args: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return get_dataset(*args)

    def impatient(*args: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            sender = threading.Thread(target=signal.raise_signal, args=[number])
            sender.start()
            sender.join()
        time.sleep(0.01)  # Python looks for signals between two of its instructions
        summarize(*args)

    module.get_dataset, module.summarize = interrupted, impatient
    ended = run_main(module, "--data", small, "--steps", 3, "--results", "r.json")
    assert (ended.status, ended.stderr) == (130, "")
    assert read_results(tmp_path / "r.json")["interrupted"] is True


def test_stopping_while_it_starts_is_no_crash(small, tmp_path) -> None:
    """Most of a short run is the import of TensorFlow: a likely moment for Ctrl+C."""
    for delay in (0.5, 1.5):
        with training(stages("02")[0], tmp_path, "--data", small) as process:
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode in (130, -signal.SIGINT)
        assert "Traceback" not in stderr
