"""Every measured figure in a page is the one in docs/measured/; what `results` keeps and writes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tfworkshop import stages
from tfworkshop.files import read_record, save_record
from tfworkshop.ladder import keep, results, table
from tfworkshop.problem import Problem
from tfworkshop.results import Failure, Ladder
from tfworkshop.stages import ROOT, STAGES, Stage


@pytest.mark.parametrize("path", results.readmes(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pages_figures_are_the_measured_ones(path: Path) -> None:
    text = path.read_text()
    assert results.MARK.search(text)
    assert results.fill(text) == text, f"{path}: type ./workshop results --write"


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_scripts_speed_is_the_measured_one(stage: Stage) -> None:
    text = stage.script.read_text()
    assert results.SPEED_LINE.search(text.split('"""')[1])
    assert results.with_speed(stage) == text, f"{stage.name}: type ./workshop results --write"
    assert len(results.speed_line(stage)) <= 100


def test_the_chart_is_drawn_from_the_same_run() -> None:
    ladder = results.read_ladder(results.quoted_folder())
    assert Image.open(results.CHART).info["Description"] == table.fingerprint(ladder)


def test_what_is_kept_is_a_whole_run_that_names_no_machine() -> None:
    for folder in [results.quoted_folder(), *results.other_folders()]:
        ladder = results.read_ladder(folder)
        keep.check(ladder)
        assert keep.folder_name(ladder) == folder.name
        assert all(len(row.repeats) >= 3 for row in ladder.rows)
    for path in results.MEASURED.rglob("*.*"):
        assert not re.search(r"/(work|home|root|tmp)\b", path.read_text())


def test_a_figure_that_does_not_exist() -> None:
    with pytest.raises(Problem, match="factor 07 00"):
        results.fill("<!--= factor 07 00 -->1x<!--/=-->")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pages, the scripts and what was measured, free to be changed."""
    for path in [*results.readmes(), *(stage.script for stage in STAGES)]:
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    measured = tmp_path / "docs" / "measured"
    shutil.copytree(results.MEASURED, measured)
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "MEASURED", measured)
    monkeypatch.setattr(results, "CHART", tmp_path / "chart.png")
    monkeypatch.setenv("WORKSHOP_RESULTS", str(tmp_path / "results"))
    return tmp_path


def pages(copy: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in [*copy.glob("**/*.md"), *copy.glob("0*/*.py")]}


def test_write_puts_other_figures_into_pages_and_scripts(copy: Path) -> None:
    before = pages(copy)
    assert results.run(keep=None, write=True) == 0
    assert pages(copy) == before
    path = results.quoted_folder() / "ladder.json"
    ladder = read_record(path, Ladder)
    ladder.rows[2].img_per_s = 7654.0
    save_record(path, ladder)
    assert results.run(keep=None, write=True) == 0
    after = pages(copy)
    page = copy / "docs" / "RESULTS.md"
    assert "7,654" in after[page] and "7,654" not in before[page]
    assert results.MARK.sub("", after[page]) == results.MARK.sub("", before[page])
    script = STAGES[2].script
    assert re.search(r"^Speed: 7,654 img/s, 55x stage 00 \(", after[script], re.M)
    assert results.SPEED_LINE.sub("", after[script]) == results.SPEED_LINE.sub("", before[script])
    assert Image.open(results.CHART).info["Description"] == table.fingerprint(ladder)


REPORT = {
    "steps": {"count": 10},
    "operations": [
        {"name": "conv", "type": "Conv2D", "mode": "host", "count": 10, "self_ms": 75.0},
        {"name": "adam/add", "type": "AddV2", "mode": "host", "count": 40, "self_ms": 25.0},
        {"name": "map", "type": "Dataset", "mode": "tf.data", "count": 10, "self_ms": 900.0},
    ],
}


@pytest.fixture
def sent(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's folder. There is no GPU here: it is this CPU's ladder under another name."""
    folder = copy / "sent"
    shutil.copytree(results.quoted_folder(), folder)
    ladder = results.read_ladder(folder)
    for row in ladder.rows:
        row.device = "NVIDIA A100-SXM4-40GB"
        row.logdir = "/home/me/results/logs"
    save_record(folder / "ladder.json", ladder)

    def workshop(*words: str) -> None:
        """Stands in for the report of a profile that is not here."""
        save_record(Path(words[-1]), REPORT)

    monkeypatch.setattr(keep, "workshop", workshop)
    return folder


def test_another_device_comes_with_tables_of_its_own(copy: Path, sent: Path) -> None:
    before = pages(copy)
    assert results.run(keep=str(sent), write=True) == 0
    kept = results.MEASURED / "nvidia-a100-sxm4-40gb"
    tables = {"ladder.json", "bench_1.json", "bench_64.json", "clock.txt"}
    tables |= {"scale_06_64.json", "scale_06_1024.json", "profile_04.json", "profile_05.json"}
    assert {path.name for path in kept.iterdir()} == tables
    assert "/home" not in (kept / "ladder.json").read_text()
    profile = read_record(kept / "profile_04.json", dict[str, float])
    assert (profile["convolutions"], profile["adam"]) == (0.75, 4)

    after = pages(copy)
    text = after[copy / "docs" / "RESULTS.md"]
    (section,) = (mark[3] for mark in results.MARK.finditer(text) if mark[2] == "devices")
    assert section.startswith("\n### NVIDIA A100-SXM4-40GB, AMD EPYC\n")
    assert section.count("\n|---") == 5
    first_page = after[copy / "README.md"]
    assert "Measured on NVIDIA A100-SXM4-40GB: 1,057 img/s." in first_page
    assert "Not run on a GPU yet" not in "".join(after.values())

    def without_other_devices(text: str) -> str:
        return re.sub(r"<!--= (devices|gpus).*?<!--/=-->", "", text, flags=re.S)

    for path, old in before.items():
        assert without_other_devices(after[path]) == without_other_devices(old)


@pytest.mark.parametrize("spoiled", ["short", "failed", "interrupted", "synthetic"])
def test_only_a_whole_real_run_is_kept(spoiled: str, sent: Path) -> None:
    ladder = results.read_ladder(sent)
    if spoiled == "short":
        ladder.rows.pop()
    elif spoiled == "failed":
        ladder.failed.append(Failure("03_xla", "x"))
    elif spoiled == "interrupted":
        ladder.rows[3].interrupted = True
    else:
        ladder.rows[3].data = "synthetic"
    save_record(sent / "ladder.json", ladder)
    with pytest.raises(Problem):
        results.run(keep=str(sent), write=True)
    assert not (results.MEASURED / "nvidia-a100-sxm4-40gb").exists()


def test_results_shows_the_last_run(copy: Path, capsys) -> None:
    with pytest.raises(Problem, match=r"\./workshop run"):
        results.run(keep=None, write=False)
    shutil.copy(results.quoted_folder() / "ladder.json", copy / "results")
    assert results.run(keep=None, write=False) == 0
    assert re.search(r"^06_optimized .* 1,057 ", capsys.readouterr().out, re.M)
