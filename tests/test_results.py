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
from tfworkshop.ladder import bench, results, table
from tfworkshop.problem import Problem
from tfworkshop.stages import ROOT, STAGES, Stage


@pytest.mark.parametrize("path", results.readmes(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_readmes_figures_are_the_measured_ones(path: Path) -> None:
    text = path.read_text()
    assert results.MARK.search(text)
    assert results.fill(text) == text, f"{path}: type ./workshop results --write"


def test_the_chart_is_drawn_from_the_same_run() -> None:
    ladder = json.loads((results.quoted() / "ladder.json").read_text())
    assert Image.open(results.CHART).info["Description"] == table.fingerprint(ladder)


def test_what_is_kept_is_a_whole_run_that_names_no_machine() -> None:
    for folder in [results.quoted(), *results.others()]:
        ladder = json.loads((folder / "ladder.json").read_text())
        assert results.folder_name(ladder) == folder.name
        assert [row["stage"] for row in ladder["rows"]] == [stage.name for stage in STAGES]
        assert all(len(row["repeats"]) >= 3 and row["data"] == "mnist" for row in ladder["rows"])
    for path in results.KEPT.rglob("*.*"):
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
    kept = copy / "measured" / results.QUOTED / "ladder.json"
    ladder = json.loads(kept.read_text())
    ladder["rows"][2]["img_per_s"] = 7654.0
    kept.write_text(json.dumps(ladder))
    before = (copy / "RESULTS.md").read_text()
    assert results.run(keep=None, write=True) == 0
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
    ladder = json.loads((copy / "measured" / results.QUOTED / "ladder.json").read_text())
    for row in ladder["rows"]:
        row |= {"results": "/home/me/results/x.json", "logdir": "/home/me/results/logs/x"}
    (copy / "results").mkdir(exist_ok=True)
    (copy / "results" / "ladder.json").write_text(json.dumps(ladder))
    return ladder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for xray and for the report of a profile: both need TensorFlow."""
    cases = [
        {"stage": stage.folder, "script": stage.file, "precision": "float32", "xla": "off"}
        | {"kernels": 4321, "compiled_calls": 0}
        for stage in STAGES
    ]
    text = json.dumps({"tensorflow": "2.17.1", "cases": cases})
    shares = dict.fromkeys(("convolutions", "products", "random", "adam"), 0.123)
    monkeypatch.setattr(results, "predict", lambda path: path.write_text(text))
    monkeypatch.setattr(results, "summary", lambda folder, number: shares)


def test_keep_copies_the_runs_and_what_xray_predicts(copy: Path, quick) -> None:
    ladder = last_run(copy) | {"date": "2027-01-01"}
    (copy / "results" / "ladder.json").write_text(json.dumps(ladder))
    assert results.run(keep="", write=False) == 0
    assert results.profiled("05", "convolutions") == "12 %"
    kept = (copy / "measured" / results.QUOTED / "ladder.json").read_text()
    assert "2027-01-01" in kept and "/home" not in kept
    assert results.kernels("02") == "4321"


def sent(copy: Path, device: str, **more: object) -> Path:
    """Somebody's folder. There is no GPU here: it is this CPU's ladder, under another name."""
    folder = copy / "sent"
    folder.mkdir()
    ladder = last_run(copy) | more
    for row in ladder["rows"]:
        row["device"] = device
    (folder / "ladder.json").write_text(json.dumps(ladder))
    for name in ("bench_64.json", "scale_06_64.json"):
        shutil.copy(results.quoted() / name, folder)
    (folder / "gpu.csv").write_text(
        "timestamp,index,power.draw,clocks.sm,clocks.mem,temperature.gpu\n"
        "2027/01/01 12:00:00.000, 0, 61.50, 210, 1215, 31\n"
        "2027/01/01 12:00:05.000, 0, 301.25, 1410, 1215, [N/A]\n"
    )
    return folder


def test_another_device_comes_with_tables_of_its_own(copy: Path, quick) -> None:
    pages = [*results.readmes(), *(results.script(stage) for stage in STAGES)]
    before = {path: path.read_text() for path in pages}
    assert results.run(keep=str(sent(copy, "NVIDIA A100-SXM4-40GB")), write=True) == 0
    names = {path.name for path in (copy / "measured" / "nvidia-a100-sxm4-40gb").iterdir()}
    tables = {"ladder.json", "bench_64.json", "scale_06_64.json", "gpu.json"}
    assert names == {*tables, "profile_04.json", "profile_05.json"}

    after = {path: path.read_text() for path in pages}
    shown = after[copy / "RESULTS.md"]
    (new,) = (found[3] for found in results.MARK.finditer(shown) if found[2] == "devices")
    assert new.startswith("\n### NVIDIA A100-SXM4-40GB, AMD EPYC\n")
    assert "**These are figures of NVIDIA A100-SXM4-40GB.**" in new
    assert new.count("\n|---") == 3 and "\n| 06_optimized |" in new and "power (W) 62 to 301" in new
    first = after[copy / "README.md"]
    assert "Measured on NVIDIA A100-SXM4-40GB: 1,057 img/s." in first
    assert "Not run on a GPU yet" not in "".join(after.values())

    def of_the_cpu(text: str) -> str:  # all that was there before, but what xray predicts
        text = re.sub(r"<!--= (devices|gpus|kernels).*?<!--/=-->", "", text, flags=re.S)
        return re.sub(r" \| (-|[\d+]+) \|$", "", text, flags=re.M)

    assert {path: of_the_cpu(text) for path, text in after.items()} == {
        path: of_the_cpu(text) for path, text in before.items()
    }
    assert results.run(keep=None, write=True) == 0
    assert after == {path: path.read_text() for path in pages}


@pytest.mark.parametrize(
    ("device", "machine", "ranks", "name"),
    [
        ("CPU, 2 cores", "AMD EPYC", 1, "2-core-amd-epyc"),
        ("NVIDIA A100-SXM4-40GB", "AMD EPYC", 4, "4-x-nvidia-a100-sxm4-40gb"),
        ("../../../etc/passwd", "", 1, "etc-passwd"),
        ("a\0b/" + 99 * "x", "", 1, "a-b-" + 56 * "x"),
    ],
)
def test_a_devices_folder(device: str, machine: str, ranks: int, name: str) -> None:
    ladder = {"machine": machine, "rows": [{"device": device, "ranks": ranks}]}
    assert results.folder_name(ladder) == name


def test_a_device_without_a_name(copy: Path, quick, capsys) -> None:
    assert results.run(keep=str(sent(copy, "../..")), write=False) == 1
    assert capsys.readouterr().err == "workshop: the run does not name its device\n"


def test_what_somebody_sends_is_only_words_on_a_page(copy: Path, quick) -> None:
    bad = "GPU [x](http://a.b) <script>|`<!--/=-->\n# Heading"
    assert results.run(keep=str(sent(copy, bad, commit=bad)), write=True) == 0
    new = results.devices()
    assert "GPU x(http://a.b) script!--/=--# Heading" in new
    assert "<" not in new and "[" not in new and "\n# " not in new


def test_a_table_with_a_failure_is_left_out(copy: Path, quick, capsys) -> None:
    folder = sent(copy, "A GPU")
    bench = json.loads((folder / "bench_64.json").read_text())
    bench["rows"][2]["failed"] = "no such kernel"
    (folder / "bench_64.json").write_text(json.dumps(bench))
    assert results.run(keep=str(folder), write=False) == 0
    assert "bench_64.json is not whole" in capsys.readouterr().err
    kept = {path.name for path in (copy / "measured" / "a-gpu").iterdir()}
    assert "scale_06_64.json" in kept and "bench_64.json" not in kept


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ladder.json", "NaN"),
        ("ladder.json", "[" * 100_000),
        ("ladder.json", '{"rows": 5}'),
        ("ladder.json", '{"rows": [{"stage": "00_baseline"}]}'),
        ("bench_64.json", '{"rows": [{"img_per_s": NaN}], "data": "mnist"}'),
        ("bench_64.json", "[]"),
        ("scale_06_64.json", '{"points": [{}], "data": "mnist"}'),
    ],
)
def test_a_folder_of_another_shape(copy: Path, quick, capsys, name: str, content: str) -> None:
    folder = sent(copy, "A GPU")
    (folder / name).write_text(content)
    assert results.run(keep=str(folder), write=True) == 1
    told = capsys.readouterr().err
    assert told.startswith("workshop: ") and told.count("\n") == 1
    assert not (copy / "measured" / "a-gpu").exists()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda ladder: ladder["rows"].pop(), "did not cover all stages"),
        (lambda ladder: ladder["rows"][3].update(failed="x"), "failed, was stopped"),
        (lambda ladder: ladder["rows"][3].update(data="synthetic"), "did not use real MNIST"),
        (lambda ladder: ladder["rows"][3].update(device="A GPU"), "on different devices"),
    ],
)
def test_only_a_whole_real_run_is_kept(copy: Path, capsys, spoil, says: str) -> None:
    spoil(ladder := last_run(copy))
    (copy / "results" / "ladder.json").write_text(json.dumps(ladder))
    kept = copy / "measured" / results.QUOTED / "ladder.json"
    old = kept.read_text()
    assert results.run(keep="", write=True) == 1
    assert says in capsys.readouterr().err
    assert kept.read_text() == old


@pytest.mark.parametrize("content", ['{"rows": []}', "[]", '{"rows": [{"stage": "00"}]}', "{"])
def test_measured_of_another_shape(copy: Path, capsys, content: str) -> None:
    (copy / "measured" / results.QUOTED / "ladder.json").write_text(content)
    before = (copy / "RESULTS.md").read_text()
    assert results.run(keep=None, write=True) == 1
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
