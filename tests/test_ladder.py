"""`./workshop run` and `scale`, for real but short: table, chart, failures, Ctrl+C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from matplotlib import image
from rich.console import Console

from tests.conftest import stage_environment
from tools import ladder, launch, scale, stages, table
from tools.logged_run import Problem
from tools.stages import ROOT, STAGES

WORKSHOP = [sys.executable, "-m", "tools"]  # what ./workshop starts


def environment(results: Path) -> dict[str, str]:
    return stage_environment(WORKSHOP_RESULTS=str(results), PYTHONPATH=str(ROOT))


def workshop(results: Path, *words: object, timeout: float = 300) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*WORKSHOP, *map(str, words)],
        env=environment(results),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture(scope="module")
def short_run(mnist: Path, tmp_path_factory: pytest.TempPathFactory):
    """One real run of two stages, looked at by several tests."""
    results = tmp_path_factory.mktemp("results")
    return results, workshop(results, "run", "--stages", "02", "06", "--steps", 24)


def test_run_ends_with_a_table(short_run) -> None:
    _, process = short_run
    assert process.returncode == 0, process.stdout + process.stderr
    assert re.search(r"02_tf_function +(the step is a tf.function +)?\d+ +[\d.,]+", process.stdout)
    assert re.search(r"06_optimized .*x +[\d.]+x +\d+\.\d +\d+\.\d %", process.stdout)
    assert "real MNIST" in process.stdout
    assert max(map(len, process.stdout.splitlines())) <= 100


def test_plain_lines_where_there_is_no_terminal(short_run) -> None:
    _, process = short_run
    assert "\x1b" not in process.stdout and "\r" not in process.stdout
    assert re.search(r"^02_tf_function +[\d.,]+ img/s +\(\d+ s\)$", process.stdout, re.M)


def test_run_writes_json_markdown_and_chart(short_run) -> None:
    results, _ = short_run
    ladder = json.loads((results / "ladder.json").read_text())
    rows = ladder["rows"]
    assert [row["stage"] for row in rows] == ["02_tf_function", "06_optimized"]
    assert ladder["ceiling"]["float32"] > 1e9
    assert all(len(row["log"]) == 3 for row in rows)
    for row in rows:
        assert f"{row['img_per_s']:,.0f}" in (results / "ladder.md").read_text()
    height, width = image.imread(results / "ladder.png").shape[:2]
    assert width > 800 and height > 200


def test_a_terminal_gets_a_progress_bar(mnist: Path, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*WORKSHOP, "run", "--stages", "02", "--steps", "12"],
        env={**environment(tmp_path), "TERM": "xterm", "COLUMNS": "100"},
        stdout=slave,
        stderr=slave,
        close_fds=True,
    )
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 4096):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    assert process.wait(60) == 0
    text = shown.decode()
    assert "02_tf_function" in text and "img/s" in text and "left" in text and "━" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--stages", "07"], "no stage 07. The stages are 00, 01"),
        (["--steps", "0"], "0 is less than 1"),
        (["--batch-size", "many"], "invalid"),
        (["--colour"], "unrecognized arguments"),
    ],
)
def test_wrong_words(words: list[str], says: str, tmp_path: Path) -> None:
    process = workshop(tmp_path, "run", *words)
    assert process.returncode == 2
    assert says in process.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_results_that_cannot_be_written(mnist: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    process = workshop(tmp_path / "file" / "results", "run", "--stages", "02", "--steps", 1)
    assert process.returncode == 1
    (line,) = process.stderr.splitlines()
    assert line.startswith("workshop: ") and "file" in line


@pytest.mark.parametrize("steps", [4, 12, 21, 24, 100])
def test_a_profiled_stage_still_has_steps_for_the_clock(steps: int) -> None:
    """Stages 04 and 05 time neither the warm-up nor the window; this sees what is left."""
    first, last = launch.profiled_steps(steps)
    unprofiled = steps - (last - first + 1)
    warmup = min(10, (steps + 1) // 2)
    assert warmup <= first + 1 and first <= last < steps
    assert unprofiled > warmup


@pytest.fixture
def fake_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes stages of small scripts, to see what the ladder does with bad ones."""
    monkeypatch.setenv("WORKSHOP_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(stages.Stage, "script", property(lambda self: tmp_path / self.file))

    def make(**sources: str) -> list[stages.Stage]:
        made = []
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
            made.append(replace(STAGES[0], folder=name, file=f"{name}.py"))
        return made

    return make


GOOD = """
import json, sys
print("x - INFO - (0, 0), Loss: 1.0, step_time: 0.1, throughput: 640.0 img/s.")
row = dict(img_per_s=640.0, step_ms_median=100.0, test_accuracy=0.9, ranks=1, device="CPU")
row |= dict(data="mnist", global_batch=64, warmup_steps=10, versions={}, precision="float32")
open(sys.argv[sys.argv.index("--results") + 1], "w").write(json.dumps(row))
"""


def test_a_failing_stage_is_a_row_and_the_others_run(fake_stages, mnist: Path, capfd) -> None:
    chosen = fake_stages(
        a_bad="import sys; sys.exit('a_bad: the reason')",
        b_killed="import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        c_silent="pass",
        d_good=GOOD,
    )
    assert ladder.run(chosen, steps=5, batch_size=64, ranks=1) == 1
    out, err = capfd.readouterr()
    assert out.count("FAILED") == 6  # a line when it happens, a row in the table
    assert re.search(r"d_good .* 640 ", out)
    assert "a_bad failed: a_bad: the reason" in err
    assert "b_killed failed: killed by SIGKILL" in err
    assert "c_silent failed: it wrote no results" in err
    rows = json.loads((launch.results_folder() / "ladder.json").read_text())["rows"]
    assert ["failed" in row for row in rows] == [True, True, True, False]


def test_old_results_are_never_taken_for_new_ones(fake_stages, mnist: Path) -> None:
    (chosen,) = fake_stages(a=GOOD)
    assert "failed" not in launch.train(launch.Job(chosen, 5, 64))
    (chosen,) = fake_stages(a="pass")
    assert launch.train(launch.Job(chosen, 5, 64))["failed"] == "it wrote no results"


def row(stage: str, speed: float, data: str = "mnist") -> dict:
    return {
        "stage": stage,
        "change": "a change of some words",
        "img_per_s": speed,
        "step_ms_median": 64000 / speed,
        "test_accuracy": 0.987,
        "device": "CPU, 2 cores",
        "data": data,
        "ranks": 1,
        "global_batch": 64,
        "warmup_steps": 10,
        "versions": {"tensorflow": "2.17.1"},
        "precision": "float32",
        "lines": 12,
    }


def ladder_of(*rows: dict) -> dict:
    ceiling = {"float32": 2e11, "bfloat16": 4e11}
    return {
        "rows": list(rows),
        "steps": 100,
        "ceiling": ceiling,
        "date": "2026-01-02",
        "commit": "",
    }


def test_the_share_of_the_ceiling() -> None:
    """71.6 MFLOP an image: 1,000 images a second of a device that does 200 GFLOP/s."""
    ladder = ladder_of(row("00_baseline", 1000.0))
    assert table.of_ceiling(ladder["rows"][0], ladder["ceiling"]) == pytest.approx(0.3578, abs=1e-4)
    reduced = row("05_reduced_precision", 1000.0) | {"precision": "mixed_bfloat16"}
    assert table.of_ceiling(reduced, ladder["ceiling"]) == pytest.approx(0.1789, abs=1e-4)
    assert table.of_ceiling(reduced, {}) is None


def test_repeats_become_their_median_row() -> None:
    rows = [row("02_tf_function", speed) for speed in (1000.0, 3000.0, 2000.0)]
    made = ladder.middle(rows)
    assert made["img_per_s"] == 2000 and made["step_ms_median"] == 32
    assert made["repeats"] == [1000, 3000, 2000]
    assert ladder.middle([*rows, {"stage": "x", "failed": "why"}])["failed"] == "why"


def test_the_repeats_and_their_spread_are_shown(fake_stages, mnist: Path, capfd) -> None:
    chosen = fake_stages(a=GOOD, b=GOOD)
    assert ladder.run(chosen, steps=5, batch_size=64, ranks=1, repeats=2) == 0
    out = capfd.readouterr().out
    order = re.findall(r"^([ab]) +640 img/s", out, re.M)
    assert order == ["a", "b", "a", "b"]  # in turns
    assert "640 (640 to 640)" in out and "median of 2 runs" in out


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_fits(width: int, capsys) -> None:
    rows = [row(stage.folder, 140.0) | {"change": stage.change} for stage in STAGES]
    rows[-1] = rows[-1] | {"img_per_s": 1_234_567.0}
    table.show(ladder_of(*rows), Console(width=width))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "1,234,567" in out and "8818x" in out and "98.7 %" in out and "…" not in out


def test_a_run_too_short_to_time_has_not_failed(capsys) -> None:
    rows = [row("00_baseline", 100.0), {**row("02_tf_function", 100.0), "img_per_s": None}]
    table.show(ladder_of(*rows), Console(width=100))
    out = capsys.readouterr().out
    assert "failed" not in out and out.count("02_tf_function") == 2


def test_synthetic_data_is_said_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("00_baseline", 100.0, data="synthetic")]
    assert "SYNTHETIC" in table.markdown(ladder_of(*rows))
    titles: list[str] = []
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "suptitle", lambda self, text, **_: titles.append(text))
    table.draw(ladder_of(*rows), tmp_path / "ladder.png")
    assert "SYNTHETIC" in titles[0]


@contextmanager
def started(results: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """`run` with its first stage at work, and the processes below it."""
    process = subprocess.Popen(
        [*WORKSHOP, "run", "--stages", "02", "03", "--steps", "100000"],
        env=environment(results),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log = results / "02_tf_function.log"
    deadline = time.monotonic() + 60
    while not (log.exists() and "throughput" in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.2)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    try:
        yield process, children
    finally:
        for left in [process, *children]:
            with suppress(psutil.NoSuchProcess):
                left.kill()


@pytest.mark.timeout(120)
def test_ctrl_c_shows_what_was_done_and_leaves_no_process(mnist: Path, tmp_path: Path) -> None:
    with started(tmp_path) as (process, children):
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to both
        out, err = process.communicate(timeout=60)
        assert not any(child.is_running() for child in children)
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert re.search(r"02_tf_function .* img/s", out) and "03_xla" not in out
    assert json.loads((tmp_path / "ladder.json").read_text())["rows"][0]["interrupted"] is True


@pytest.mark.timeout(120)
def test_a_batch_systems_signal_reaches_the_stage(mnist: Path, tmp_path: Path) -> None:
    """SIGTERM to `run` alone: the stage must not train on without it."""
    with started(tmp_path) as (process, children):
        process.terminate()
        out, err = process.communicate(timeout=60)
        assert not any(child.is_running() for child in children)
    assert (process.returncode, err) == (130, "")
    assert "03_xla" not in out


# --- scale ---


def test_the_plan_shares_the_cores() -> None:
    made = [(p.ranks, p.threads, p.exchange) for p in scale.plan([2, 1], cores=8, gpu=False)]
    assert made == [(1, 8, True), (1, 4, True), (2, 4, False), (2, 4, True)]
    assert [(p.ranks, p.threads) for p in scale.plan([1, 4], 64, gpu=True)] == [
        (1, None),
        (4, None),
    ]
    assert [(p.ranks, p.threads) for p in scale.plan([1], 2, gpu=False)] == [(1, 2)]
    with pytest.raises(Problem, match=r"99 ranks on 2 core\(s\): name 2 at most"):
        scale.plan([1, 99], 2, gpu=False)


def test_efficiency_is_against_one_rank_of_the_same_kind() -> None:
    points = [
        scale.Point(1, 2, speeds=[100.0]),
        scale.Point(1, 1, speeds=[60.0, 50.0, 70.0]),
        scale.Point(2, 1, exchange=False, speeds=[118.0]),
        scale.Point(2, 1, speeds=[114.0]),
    ]
    cells = scale.cells([*points, scale.Point(4, 1, failed="why")])
    assert cells[0][-1] == cells[2][-1] == "-"
    assert cells[1] == ["1 x 1 thread(s)", "60.0", "50.0 to 70.0", "60.0", "100%"]
    assert cells[3][-1] == "95%"
    assert cells[4][1] == "failed"
    told = "2 ranks of 1 thread(s) are 1.14x one process with 2 threads; without exchange they "
    assert scale.verdict(scale.as_rows(points)) == told + "would be 1.18x"


@pytest.mark.timeout(300)
def test_scale_for_real(mnist: Path, tmp_path: Path) -> None:
    pytest.importorskip("horovod", reason="needs Horovod: ./workshop setup --horovod")
    words = ["--stage", "06", "--ranks", 1, 2, "--repeats", 1, "--steps", 30]
    process = workshop(tmp_path, "scale", *words)
    assert process.returncode == 0, process.stdout + process.stderr
    rows = json.loads((tmp_path / "scale_06_64.json").read_text())["points"]
    kinds = [(row["ranks"], row["exchange"]) for row in rows]
    assert kinds[-3:] == [(1, True), (2, False), (2, True)]
    assert all(row["img_per_s"] > 0 for row in rows)
    assert re.search(r"2 x \d+ thread", process.stdout)
    assert image.imread(tmp_path / "scale_06_64.png").shape[1] > 600
