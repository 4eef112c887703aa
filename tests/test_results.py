"""Every measured figure in a README is the one in measured/; what `results` and `bench` refuse."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from matplotlib import image
from PIL import Image

from tests.test_ladder import workshop
from tools.ladder import bench, results, table
from tools.problem import Problem
from tools.stages import ROOT, STAGES, Stage


@pytest.mark.parametrize("path", results.readmes(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_readmes_figures_are_the_measured_ones(path: Path) -> None:
    text = path.read_text()
    assert results.MARK.search(text)
    assert results.fill(text) == text, f"{path}: type ./workshop results --write"


def test_the_chart_is_drawn_from_the_same_run() -> None:
    ladder = json.loads((results.KEPT / "ladder.json").read_text())
    assert Image.open(results.CHART).info["Description"] == table.fingerprint(ladder)


def test_what_is_kept_is_a_whole_run_that_names_no_machine() -> None:
    text = (results.KEPT / "ladder.json").read_text()
    ladder = json.loads(text)
    assert [row["stage"] for row in ladder["rows"]] == [stage.name for stage in STAGES]
    assert all(len(row["repeats"]) >= 3 and row["data"] == "mnist" for row in ladder["rows"])
    for path in results.KEPT.iterdir():
        assert not re.search(r"/(work|home|root|tmp)\b", path.read_text())


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_scripts_speed_is_the_measured_one(stage: Stage) -> None:
    text = stage.script.read_text()
    assert results.SPEED_LINE.search(text.split('"""')[1])
    assert results.with_speed(stage) == text, f"{stage.name}: type ./workshop results --write"
    assert len(results.speed_line(stage)) <= 100


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The READMEs, the scripts and what was measured, free to be changed."""
    for path in [*results.readmes(), *(stage.script for stage in STAGES)]:
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    shutil.copytree(results.KEPT, tmp_path / "measured")
    (tmp_path / "images").mkdir()
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "KEPT", tmp_path / "measured")
    monkeypatch.setattr(table, "PREDICTED", tmp_path / "measured" / "xray.json")
    monkeypatch.setattr(results, "CHART", tmp_path / "images" / "ladder.png")
    monkeypatch.setenv("WORKSHOP_RESULTS", str(tmp_path / "results"))
    return tmp_path


def test_write_puts_other_figures_into_the_readmes(copy: Path) -> None:
    kept = copy / "measured" / "ladder.json"
    ladder = json.loads(kept.read_text())
    ladder["rows"][2]["img_per_s"] = 7654.0
    kept.write_text(json.dumps(ladder))
    before = (copy / "RESULTS.md").read_text()
    assert results.run(keep=False, write=True) == 0
    after = (copy / "RESULTS.md").read_text()
    assert "7,654" in after and "7,654" not in before
    script = (copy / STAGES[2].folder / STAGES[2].file).read_text()
    assert re.search(
        r"^Speed: 7,654 img/s, [\d.]+x stage 00 \(CPU, .* \d+ steps\); A100s: ", script, re.M
    )
    assert results.SPEED_LINE.sub("", script) == results.SPEED_LINE.sub(
        "", STAGES[2].script.read_text()
    )
    assert re.sub(results.MARK, "", after) == re.sub(results.MARK, "", before)
    assert image.imread(copy / "images" / "ladder.png").shape[1] > 800


def last_run(copy: Path) -> dict:
    """A run such as `./workshop run` leaves it, in results/."""
    ladder = json.loads((copy / "measured" / "ladder.json").read_text())
    for row in ladder["rows"]:
        row |= {"results": "/home/me/results/x.json", "logdir": "/home/me/results/logs/x"}
    (copy / "results").mkdir()
    (copy / "results" / "ladder.json").write_text(json.dumps(ladder))
    return ladder


def test_keep_copies_the_runs_and_what_xray_predicts(copy: Path, monkeypatch) -> None:
    ladder = last_run(copy) | {"date": "2027-01-01"}
    (copy / "results" / "ladder.json").write_text(json.dumps(ladder))
    cases = [{"stage": "02_tf_function", "script": "train_MNIST.py", "precision": "float32"}]
    cases[0] |= {"xla": "off", "kernels": 4321, "compiled_calls": 0}
    text = json.dumps({"tensorflow": "2.17.1", "cases": cases})
    monkeypatch.setattr(results, "predict", lambda path: path.write_text(text))
    monkeypatch.setattr(results, "summary", lambda folder, number: {"convolutions": 0.123})
    assert results.run(keep=True, write=False) == 0
    assert results.profiled("05", "convolutions") == "12 %"
    kept = (copy / "measured" / "ladder.json").read_text()
    assert "2027-01-01" in kept and "/home" not in kept
    assert results.kernels("02") == "4321"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda ladder: ladder["rows"].pop(), "did not cover all stages"),
        (lambda ladder: ladder["rows"][3].update(failed="x"), "failed, was stopped"),
        (lambda ladder: ladder["rows"][3].update(data="synthetic"), "did not use real MNIST"),
    ],
)
def test_only_a_whole_real_run_is_kept(copy: Path, capsys, spoil, says: str) -> None:
    spoil(ladder := last_run(copy))
    (copy / "results" / "ladder.json").write_text(json.dumps(ladder))
    old = (copy / "measured" / "ladder.json").read_text()
    assert results.run(keep=True, write=True) == 1
    assert says in capsys.readouterr().err
    assert (copy / "measured" / "ladder.json").read_text() == old


@pytest.mark.parametrize("content", ['{"rows": []}', "[]", '{"rows": [{"stage": "00"}]}', "{"])
def test_measured_of_another_shape(copy: Path, capsys, content: str) -> None:
    (copy / "measured" / "ladder.json").write_text(content)
    before = (copy / "RESULTS.md").read_text()
    assert results.run(keep=False, write=True) == 1
    told = capsys.readouterr().err
    assert told.startswith("workshop: ") and told.count("\n") == 1 and "measured" in told
    assert (copy / "RESULTS.md").read_text() == before


def test_results_without_a_run(tmp_path: Path) -> None:
    process = workshop(tmp_path, "results")
    assert process.returncode == 1
    assert re.fullmatch(
        r"workshop: no ladder.json in .*: ./workshop run, bench and scale write it\n",
        process.stderr,
    )


# --- bench ---


def test_bench_refuses_more_images_than_there_are() -> None:
    with pytest.raises(Problem, match="--batch-size 60001 is more than the 60000 images"):
        bench.run([64, 60001], repeats=1, steps=1)


def test_the_best_fit_is_what_counts() -> None:
    speeds = {"06_optimized": 300.0, "model.fit, a": 100.0, "model.fit, b": 200.0}
    rows = [{"name": name, "img_per_s": v, "repeats": [v]} for name, v in speeds.items()]
    found = {"batch_size": 1, "rows": rows}
    assert bench.verdict(found) == "batch 1: 06 is 1.50x the best model.fit, b"
    assert [row[-1] for row in bench.cells(found)] == ["-", "3.00x", "1.50x"]
