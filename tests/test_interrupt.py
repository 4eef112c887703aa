"""Ctrl+C, or a batch system's SIGTERM, is a normal way to stop: summary, results, exit 130."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import (
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


# Which stage, the steps logged before the signal, the signal, and whether it profiles.
CASES = {
    "02": (stages("02")[0], 12, signal.SIGTERM, False),
    "04, profiling": (stages("04")[0], 8, signal.SIGINT, True),
    "06, profiling": (LAST, 8, signal.SIGTERM, True),
    "06": (LAST, 30, signal.SIGINT, False),
}


@pytest.mark.parametrize("case", CASES)
def test_stopping_is_normal(case: str, small: Path, warm_python: Path, tmp_path: Path) -> None:
    script, lines, number, profiling = CASES[case]
    command = [warm_python, ROOT / script[0] / script[1], "--data", small, "--epochs", "1000"]
    command += ["--batch-size", "16", "--results", "out/r.json"]
    if profiling:
        command += ["--logdir", "logs", "--profile-steps", "3", "1000"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=stage_environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stderr
        stdout = ""
        while len(LOG_LINE.findall(stdout)) < lines:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            stdout += line
        process.send_signal(number)
        stdout += process.stdout.read()
        stderr = process.stderr.read()
    assert (process.returncode, said(stderr)) == (130, [])
    results = read_results(tmp_path / "out" / "r.json")
    assert results["interrupted"] is True and results["test_accuracy"] is None
    assert f"final_loss      {results['final_loss']}" in stdout.splitlines()
    logged = len(LOG_LINE.findall(stdout))
    if not profiling:
        assert results["warmup_steps"] + results["steps_timed"] == logged
        assert files_in(tmp_path) == {"out/r.json"}
    else:
        (profile,) = tmp_path.glob("logs/plugins/profile/*/*.xplane.pb")
        assert profile.stat().st_size > 10_000


@pytest.mark.parametrize("script", [*stages("00", "02"), LAST], ids=script_id)
@pytest.mark.parametrize("place", ["get_dataset", "fetch_batch", "evaluate"])
def test_stopping_anywhere_in_the_training(script, place, small, tmp_path, monkeypatch) -> None:
    """Signals, even many, are heeded after the step; after the last one nothing is missing."""
    monkeypatch.chdir(tmp_path)
    module = load_script(script)
    original = getattr(module, place)

    def interrupted(*args: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return original(*args)

    setattr(module, place, interrupted)
    options = ["--data", small, "--batch-size", 16, "--steps", 3, "--results", "r.json"]
    if script == LAST:
        options += ["--steps-per-call", 1]
    ended = run_main(module, *options)
    assert (ended.status, ended.stderr) == (130, "")
    results = read_results(tmp_path / "r.json")
    assert results["interrupted"] is True
    assert results["warmup_steps"] == len(losses(ended.stdout)) == (3 if place == "evaluate" else 1)
    assert (results["test_accuracy"] is None) == (place != "evaluate")
