"""Every measured figure in a README is the one in measured/; `results` and `bench` for real."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from matplotlib import image
from PIL import Image

from tests.test_ladder import workshop
from tools import bench, results, table
from tools.logged_run import Problem
from tools.stages import ROOT, STAGES


@pytest.mark.parametrize("path", results.readmes(), ids=lambda path: path.parent.name)
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
    assert [row["stage"] for row in ladder["rows"]] == [stage.folder for stage in STAGES]
    assert all(len(row["repeats"]) >= 3 and row["data"] == "mnist" for row in ladder["rows"])
    for path in results.KEPT.iterdir():
        assert not re.search(r"/(work|home|root|tmp)\b", path.read_text())


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The READMEs and what was measured, free to be changed."""
    for path in results.readmes():
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    shutil.copytree(results.KEPT, tmp_path / "measured")
    (tmp_path / "images").mkdir()
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "KEPT", tmp_path / "measured")
    monkeypatch.setattr(results, "CHART", tmp_path / "images" / "ladder.png")
    monkeypatch.setenv("WORKSHOP_RESULTS", str(tmp_path / "results"))
    return tmp_path


def test_write_puts_other_figures_into_the_readmes(copy: Path) -> None:
    kept = copy / "measured" / "ladder.json"
    ladder = json.loads(kept.read_text())
    ladder["rows"][2]["img_per_s"] = 7654.0
    kept.write_text(json.dumps(ladder))
    before = (copy / "README.md").read_text()
    assert results.run(keep_last=False, write_readmes=True) == 0
    after = (copy / "README.md").read_text()
    assert "7,654" in after and "7,654" not in before
    assert re.sub(results.MARK, "", after) == re.sub(results.MARK, "", before)
    assert image.imread(copy / "images" / "ladder.png").shape[1] > 800


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda ladder: ladder["rows"].pop(), "was not of all stages"),
        (lambda ladder: ladder["rows"][3].update(failed="x"), "failed, was stopped"),
        (lambda ladder: ladder["rows"][3].update(data="synthetic"), "not on real MNIST"),
    ],
)
def test_only_a_whole_real_run_is_kept(copy: Path, capsys, spoil, says: str) -> None:
    ladder = json.loads((copy / "measured" / "ladder.json").read_text())
    for row in ladder["rows"]:
        row["command"] = "python train_MNIST.py --data /home/me/mnist.npz"
    spoil(ladder)
    (copy / "results").mkdir()
    (copy / "results" / "ladder.json").write_text(json.dumps(ladder))
    old = (copy / "measured" / "ladder.json").read_text()
    assert results.run(keep_last=True, write_readmes=True) == 1
    assert says in capsys.readouterr().err
    assert (copy / "measured" / "ladder.json").read_text() == old


@pytest.mark.parametrize("content", ['{"rows": []}', "[]", '{"rows": [{"stage": "00"}]}', "{"])
def test_measured_of_another_shape(copy: Path, capsys, content: str) -> None:
    (copy / "measured" / "ladder.json").write_text(content)
    before = (copy / "README.md").read_text()
    assert results.run(keep_last=False, write_readmes=True) == 1
    told = capsys.readouterr().err
    assert told.startswith("workshop: ") and told.count("\n") == 1 and "measured" in told
    assert (copy / "README.md").read_text() == before


def test_results_without_a_run(tmp_path: Path) -> None:
    process = workshop(tmp_path, "results")
    assert process.returncode == 1
    assert re.fullmatch(
        r"workshop: no ladder.json in .*: ./workshop run, bench and scale make it\n", process.stderr
    )


# --- bench ---


def test_bench_refuses_more_images_than_there_are() -> None:
    with pytest.raises(Problem, match="--batch-size 60001 is more than the 60000 images"):
        bench.run([64, 60001], repeats=1, steps=1)


@pytest.mark.timeout(400)
def test_bench_for_real(mnist: Path, tmp_path: Path) -> None:
    words = ["--batch-size", 64, "--repeats", 1, "--steps", 20]
    process = workshop(tmp_path, "bench", *words, timeout=390)
    assert process.returncode == 0, process.stdout + process.stderr
    found = json.loads((tmp_path / "bench_64.json").read_text())
    assert [row["name"] for row in found["rows"]][:2] == ["06_optimized", "02_tf_function"]
    assert len(found["rows"]) == 6 and all(row["img_per_s"] > 0 for row in found["rows"])
    assert re.search(r"batch 64: 06 is [\d.]+x the best model.fit", process.stdout)
    assert max(map(len, process.stdout.splitlines())) <= 100


def test_the_best_fit_is_what_counts() -> None:
    speeds = {"06_optimized": 300.0, "model.fit, a": 100.0, "model.fit, b": 200.0}
    rows = [{"name": name, "img_per_s": v, "repeats": [v]} for name, v in speeds.items()]
    found = {"batch_size": 1, "rows": rows}
    assert bench.verdict(found) == "batch 1: 06 is 1.50x the best model.fit, b"
    assert [row[-1] for row in bench.cells(found)] == ["-", "3.00x", "1.50x"]
