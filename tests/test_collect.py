"""Every way to collect a profile leaves one that the report reads, with its steps."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import load_script, run_main, said, stage_environment
from tfworkshop.report import command as report
from tfworkshop.report.profile import Profile
from tfworkshop.report.screenshots import FOLDER, SAMPLE

COLLECT = (FOLDER.name, "collect.py")
BATCH = 16


@pytest.fixture
def collect(monkeypatch: pytest.MonkeyPatch):
    """collect.py as a module; it imports train_MNIST.py, which stands beside it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return load_script(COLLECT)


def read(logdir: Path) -> Profile:
    return report.load(logdir)[0]


def step_numbers(profile: Profile) -> list[int]:
    return [int(step.name.split()[-1]) for step in profile.steps.per_step]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_start_and_stop_around_a_window(profiled: Path) -> None:
    profile = read(profiled)
    assert step_numbers(profile) == list(range(5, 15))
    assert profile.verdict["kind"] != "unknown"


@pytest.mark.parametrize(
    ("way", "steps"),
    [("context", list(range(10, 20))), ("callback", list(range(2, 21)))],
    ids=["context", "callback"],
)
def test_profile_of_a_loop_and_of_fit(way: str, steps: list[int], collect, small, tmp_path) -> None:
    options = [way, "--data", small, "--batch-size", BATCH, "--logdir", tmp_path / "logs"]
    ended = run_main(collect, *options)
    assert ended.status == 0, ended.stderr
    profile = read(tmp_path / "logs")
    assert step_numbers(profile) == steps
    assert profile.verdict["kind"] != "unknown"


def test_sample_a_running_program(collect, small: Path, tmp_path: Path, monkeypatch) -> None:
    """Server and client stand in different folders: the profile is where the client asked."""
    here, there, port = tmp_path / "client", tmp_path / "server", free_port()
    here.mkdir(), there.mkdir()
    command = [sys.executable, str(FOLDER / "collect.py"), "server", "--port", str(port)]
    command += ["--data", str(small), "--batch-size", str(BATCH), "--steps", "60000"]
    environment = stage_environment(PYTHONUNBUFFERED="1")
    with subprocess.Popen(
        command, cwd=there, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout and "collect.py sample" in server.stdout.readline()
            options = ["sample", "--port", port, "--ms", 1000, "--data", small]
            monkeypatch.chdir(here)
            ended = run_main(collect, *options)
            assert server.poll() is None  # sampling does not end it
        finally:
            server.terminate()
    assert ended.status == 0, ended.stderr
    profile = read(here / "logs")
    numbers = step_numbers(profile)
    assert len(numbers) >= 3 and numbers == list(range(numbers[0], numbers[-1] + 1))
    assert profile.verdict["kind"] != "unknown"
    assert not list(there.iterdir())


def test_keras_alone_sets_no_step_markers(collect, small: Path, tmp_path: Path) -> None:
    """Why collect.py has a callback of its own. If this fails, Keras has learnt it: drop ours."""
    images, _, labels, _ = collect.stage.get_dataset(small)
    model = collect.stage.MNISTClassifier()
    model.compile("adam", collect.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callback = collect.keras.callbacks.TensorBoard(str(tmp_path), profile_batch=(2, 4))
    model.fit(images[:32], labels[:32], 8, callbacks=[callback], verbose=0)
    profile = read(tmp_path)
    assert profile.steps.source == "inferred"  # from calls of Keras's own function


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("", "the following arguments are required: way"),
        ("sideways", "argument way: invalid choice: 'sideways'"),
        ("context --batch-size 0", "--batch-size must be between 1 and 65535"),
        ("sample --port 70000", "--port must be between 1 and 65535"),
        ("sample --port PORT", "no answer from localhost:PORT: start python collect.py server"),
        ("context --data no.npz", "cannot read no.npz"),
        ("context --logdir FILE/logs", "cannot write to FILE/logs: Not a directory"),
    ],
)
def test_bad_input(options: str, line: str, collect, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()
    port = str(free_port())
    words = options.replace("PORT", port).split()
    ended = run_main(collect, *words)
    assert ended.status == 1
    assert len(said(ended.stderr)) == 1 and line.replace("PORT", port) in ended.stderr
    assert not list(tmp_path.rglob("*.pb"))


def test_a_port_in_use_is_noticed(collect, small: Path) -> None:
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_main(collect, "server", "--port", port, "--data", small)
    assert ended.status == 1 and f"port {port} is in use" in ended.stderr


def test_the_sample_profile() -> None:
    """Small, of no machine in particular, and worth a look."""
    content = SAMPLE.read_bytes()
    assert len(content) < 300_000
    assert not re.search(rb"/(home|root|tmp|usr|work|opt|mnt|var|Users)/", content)
    profile = read(FOLDER / "sample")
    assert profile.hosts == ["sample"]
    assert profile.steps.count == 5
    assert profile.verdict["kind"] == "input-bound"
    assert profile.input_pipeline


def test_the_pictures_of_the_readme_are_there_and_small() -> None:
    names = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (FOLDER / "README.md").read_text())
    assert names
    assert all(0 < (FOLDER / name).stat().st_size < 200_000 for name in names)
