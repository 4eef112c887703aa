"""TAKE_HOME.md: what it says to paste runs in scripts that are not ours, and what it types."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import stage_environment
from tests.readme import Readme
from tfworkshop.report import command as report
from tfworkshop.report import verdict
from tfworkshop.report.profile import Profile
from tfworkshop.stages import ROOT

PAGE = Readme("TAKE_HOME.md", (ROOT / "TAKE_HOME.md").read_text())
STRANGERS = ROOT / "tests" / "strangers"
BLOCKS = [block.text for block in PAGE.blocks if block.language == "python"]


def steps_of(profile: Profile) -> list[int]:
    return [int(step.name.split()[-1]) for step in profile.steps.per_step]


def test_it_prints_on_two_sides() -> None:
    assert len(PAGE.text.splitlines()) <= 110


@pytest.mark.parametrize("name", ["loop", "fit", "ranks"])
def test_a_stranger_has_what_the_page_says_to_paste(name: str) -> None:
    """And nothing of ours besides."""
    text = (STRANGERS / f"{name}.py").read_text()
    pasted = [block for block in BLOCKS if block in text]
    assert len(pasted) == {"loop": 1, "fit": 1, "ranks": 2}[name]
    assert not re.search(r"train_MNIST|\btools|workshop", text)


def run_stranger(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Profile:
    monkeypatch.chdir(folder)
    runpy.run_path(str(STRANGERS / f"{name}.py"), run_name="__main__")
    return report.load(folder / "logs")[0]


def test_a_loop_of_ones_own(monkeypatch, tmp_path: Path) -> None:
    profile = run_stranger("loop", monkeypatch, tmp_path)
    assert steps_of(profile) == list(range(20, 30))
    assert profile.verdict["kind"] != "unknown"


def test_what_is_typed(monkeypatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """model.fit, then each line of the page, in a folder that is not ours."""
    profile = run_stranger("fit", monkeypatch, tmp_path)
    assert steps_of(profile) == list(range(20, 30))
    assert profile.verdict["kind"] != "unknown"
    block = next(block for block in PAGE.blocks if "kernprof" in block.text)
    (tmp_path / "train.py").write_text(
        "from line_profiler import profile\n\n\n@profile\ndef step():\n    return 1\n\n\nstep()\n"
    )
    bin_folder = Path(sys.executable).parent
    capsys.readouterr()
    for command in block.commands:
        if "workshop report" in command:
            words = command.split()[2:]
            files = {"html": Path(words[2])} if len(words) > 1 else {}
            assert report.make([Path(words[0])], files) == 0
            assert profile.verdict["sentence"] in " ".join(capsys.readouterr().out.split())
            continue
        words = command.split()
        words[:1] = [sys.executable] if words[0] == "python" else [str(bin_folder / words[0])]
        ended = subprocess.run(words, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    assert "Hits" in ended.stdout and (tmp_path / "report.html").stat().st_size > 10_000


def test_a_batch_job_without_a_network(tmp_path: Path) -> None:
    """The page's lines in a bash of their own: no network where the kernel allows to cut it off."""
    block = next(block for block in PAGE.blocks if "scp" in block.text)
    job = "\n".join(["set -e", *block.commands[:2]])  # the third copies what is there then
    (tmp_path / "workshop").symlink_to(ROOT)
    (tmp_path / "train.py").write_text((STRANGERS / "fit.py").read_text())
    alone = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        alone = []
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = stage_environment(HOME=str(tmp_path), PATH=path, TF_CPP_MIN_LOG_LEVEL="2")
    words = [*alone, "bash", "-c", job]
    ended = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "wrote report.html" in ended.stdout and "-bound: " in ended.stdout
    assert "accuracy" in (tmp_path / "log.txt").read_text()


def test_the_verdicts_are_those_of_the_report() -> None:
    table = set(re.findall(r"^\| ([a-z-]+) \|", PAGE.text, re.M)) - {"verdict"}
    assert table == {*verdict.KINDS.values(), "unknown"}
