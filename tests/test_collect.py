"""04's collect.py: every way to collect a profile gives one that the report reads, with its steps.
And 02's clock.py: a clock that does not wait shows too little."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest

from tests.conftest import run_script, said, stage_environment
from tfworkshop.report import reader
from tfworkshop.report.screenshots import FOLDER, SAMPLE

COLLECT = (FOLDER.name, "collect.py")
BATCH = 16


def step_numbers(logdir: Path) -> list[int]:
    profile, _ = reader.load(logdir)
    assert profile.steps.source == "markers" and profile.verdict["kind"] != "unknown"
    return [int(step.name.split()[-1]) for step in profile.steps.per_step]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "steps"), [("context", (10, 19)), ("callback", (2, 20))])
def test_profile_of_a_loop_and_of_fit(way: str, steps, small, warm_python, tmp_path) -> None:
    options = [way, "--data", small, "--batch-size", BATCH, "--logdir", "logs"]
    process = run_script(COLLECT, *options, cwd=tmp_path, python=warm_python)
    assert process.returncode == 0, process.stderr
    assert step_numbers(tmp_path / "logs") == list(range(steps[0], steps[1] + 1))


@pytest.mark.slow
def test_sample_a_running_program(small: Path, warm_python: Path, tmp_path: Path) -> None:
    """Server and client stand in different folders: the profile is where the client asked."""
    here, there, port = tmp_path / "client", tmp_path / "server", free_port()
    here.mkdir()
    there.mkdir()
    command = [warm_python, FOLDER / "collect.py", "server", "--port", port, "--data", small]
    command += ["--batch-size", BATCH, "--steps", 60000]
    with subprocess.Popen(
        list(map(str, command)),
        cwd=there,
        env=stage_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout and "collect.py sample" in server.stdout.readline()
            taken = run_script(
                COLLECT, "server", "--port", port, "--data", small, cwd=there, python=warm_python
            )
            options = ["sample", "--port", port, "--ms", 1000]
            process = run_script(COLLECT, *options, cwd=here, python=warm_python)
            assert server.poll() is None  # sampling does not end it
        finally:
            server.terminate()
    assert taken.returncode == 1 and f"port {port} is in use" in taken.stderr
    assert process.returncode == 0, process.stderr
    numbers = step_numbers(here / "logs")
    assert len(numbers) >= 3 and numbers == list(range(numbers[0], numbers[-1] + 1))
    assert not list(there.rglob("*.pb"))


@pytest.mark.slow
def test_sampling_where_nothing_listens(warm_python: Path, tmp_path: Path) -> None:
    port = free_port()
    process = run_script(COLLECT, "sample", "--port", port, cwd=tmp_path, python=warm_python)
    assert process.returncode == 1
    assert f"no answer from localhost:{port}" in said(process.stderr)[-1]


def test_the_sample_profile() -> None:
    """Small, of no machine in particular, and worth a look."""
    content = SAMPLE.read_bytes()
    assert len(content) < 300_000
    assert not re.search(rb"/(home|root|tmp|usr|work|opt|mnt|var|Users)/", content)
    profile, _ = reader.load(FOLDER / "sample")
    assert (profile.hosts, profile.steps.count) == (["sample"], 5)
    assert profile.verdict["kind"] == "input-bound" and profile.input_pipeline


@pytest.mark.slow
def test_a_clock_that_does_not_wait_shows_too_little(small, warm_python, tmp_path) -> None:
    clock = ("02_tf_function", "clock.py")
    options = ["--batch-size", 64, "--data", small]
    process = run_script(clock, *options, cwd=tmp_path, python=warm_python)
    assert process.returncode == 0, process.stderr
    no_wait, wall, wait = map(float, re.findall(r"([\d.]+) ms/step", process.stdout))
    assert no_wait < wall / 2 and no_wait < wait / 2
