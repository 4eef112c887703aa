"""docs/TAKE_HOME.md: what it says to paste and to type works in scripts that are not ours."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import stage_environment
from tfworkshop.report import command as report
from tfworkshop.report import verdict
from tfworkshop.report.profile import Profile
from tfworkshop.stages import ROOT

PAGE = (ROOT / "docs" / "TAKE_HOME.md").read_text()
STRANGERS = ROOT / "tests" / "strangers"
LINE_PROFILED = """
from line_profiler import profile


@profile
def work():
    return 1


work()
"""


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def check_profile(profile: Profile) -> None:
    steps = [int(step.name.split()[-1]) for step in profile.steps.per_step]
    assert steps == list(range(20, 30))
    assert profile.verdict["kind"] != "unknown"


def test_it_prints_on_two_sides() -> None:
    assert len(PAGE.splitlines()) <= 110


@pytest.mark.parametrize(("name", "blocks"), [("loop", 1), ("fit", 1), ("ranks", 2)])
def test_a_stranger_has_what_the_page_says_to_paste(name: str, blocks: int) -> None:
    """And nothing of ours besides."""
    text = (STRANGERS / f"{name}.py").read_text()
    assert sum(block in text for block in code_blocks("python")) == blocks
    assert not re.search(r"train_MNIST|workshop", text)


@pytest.mark.slow
def test_a_loop_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(STRANGERS / "loop.py"), run_name="__main__")
    check_profile(report.load(tmp_path / "logs")[0])


@pytest.mark.slow
def test_what_is_typed(tmp_path: Path) -> None:
    """The page's lines in a bash, with model.fit, and without a network if the kernel allows it."""
    typed, _ = code_blocks("bash")
    commands = ["python pasted.py > log.txt", "mv logs pasted", *typed.splitlines()]
    (tmp_path / "workshop").symlink_to(ROOT)
    unedited = ROOT / "tests" / "programs" / "fit_arrays.py"
    (tmp_path / "pasted.py").write_text((STRANGERS / "fit.py").read_text())
    (tmp_path / "train.py").write_text(unedited.read_text() + LINE_PROFILED)
    without_network = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*without_network, "true"], capture_output=True).returncode:
        without_network = []
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    finished = subprocess.run(
        [*without_network, "bash", "-ec", "\n".join(commands)],
        cwd=tmp_path,
        env=stage_environment(HOME=str(tmp_path), PATH=path),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    check_profile(report.load(tmp_path / "pasted")[0])
    check_profile(report.load(tmp_path / "logs")[0])
    assert re.search(r"^[A-Z][a-z]+-bound: ", finished.stderr, re.M)  # by profile
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert "accuracy" in (tmp_path / "log.txt").read_text()
    assert "    return 1" in finished.stdout  # the line profiler shows the source


def test_the_verdicts_are_those_of_the_report() -> None:
    rows = set(re.findall(r"^\| ([a-z-]+) \|", PAGE, re.M)) - {"verdict"}
    assert rows == {*verdict.KINDS.values(), "unknown"}
