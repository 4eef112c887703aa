"""`./workshop run` and `scale`: table, chart, failures, Ctrl+C; test_docs.py runs real ones."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from tests.conftest import stage_environment
from tfworkshop import files, stages
from tfworkshop.files import results_folder
from tfworkshop.ladder import ceiling, launch, scale, table
from tfworkshop.ladder import run as ladder
from tfworkshop.problem import Problem
from tfworkshop.stages import ROOT, STAGES

WORKSHOP = [sys.executable, "-m", "tfworkshop"]  # what ./workshop starts


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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--stages", "07"], "no stage 07. The stages are 00, 01"),
        (["--steps", "0"], "0 is no whole number from 1 on"),
        (["--batch-size", "many"], "many is no whole number from 1 on"),
        (["--colour"], "unrecognized arguments"),
        (["--batch-size", "60001"], "60001 is more than the 60000 images"),
        (["--ranks", "500"], "500 ranks on "),
    ],
)
def test_wrong_words(words: list[str], says: str, tmp_path: Path) -> None:
    process = workshop(tmp_path, "run", *words)
    assert process.returncode in (1, 2)
    (line,) = process.stderr.splitlines()
    assert line.startswith("workshop: ") and says in line
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_leaves_the_last_good_one(fake_stages, mnist: Path, capfd) -> None:
    good = fake_stages(a=GOOD)
    assert ladder.climb(good, steps=5, batch_size=64, ranks=1) == 0
    results = results_folder()
    before = {path: path.read_bytes() for path in results.iterdir() if path.is_file()}
    assert "ladder.json" in {path.name for path in before}
    bad = fake_stages(a="import sys; sys.exit('a: the reason')")
    assert ladder.climb(bad, steps=5, batch_size=64, ranks=1) == 1
    assert before == {path: path.read_bytes() for path in results.iterdir() if path.is_file()}
    assert launch.UNFINISHED in capfd.readouterr().err
    row = json.loads((results / launch.UNFINISHED / "ladder.json").read_text())["rows"][0]
    assert row["failed"] == "a: the reason"
    assert not list(results.glob("running-*"))


def test_one_measurement_at_a_time(fake_stages, mnist: Path) -> None:
    fake_stages(a=GOOD)
    with files.measuring(results_folder()), pytest.raises(Problem, match="another"):
        ladder.run(["02"], 5, 64, 1, 1)


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
    timed = [step for step in range(10, steps) if not first <= step <= last]
    assert 0 <= first <= last < steps
    assert len(timed) >= min(last - first + 1, steps - 10)


@pytest.fixture
def fake_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes stages of small scripts, to see what the ladder does with bad ones."""
    monkeypatch.setenv("WORKSHOP_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(stages.Stage, "script", property(lambda self: tmp_path / self.file))
    monkeypatch.setattr(ceiling, "measure", lambda: {"float32": 1e11})

    def make(**sources: str) -> list[stages.Stage]:
        made = []
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
            made.append(replace(STAGES[0], name=name, file=f"{name}.py"))
        return made

    return make


GOOD = """
import json, sys
print("x - INFO - (0, 0), Loss: 1.0, step_time: 0.1, throughput: 640.0 img/s.")
row = dict(img_per_s=640.0, step_ms_median=100.0, test_accuracy=0.9, ranks=1, device="CPU")
row |= dict(data="mnist", batch_size=64, warmup_steps=10, versions={})
open(sys.argv[sys.argv.index("--results") + 1], "w").write(json.dumps(row))
"""


def test_a_failing_stage_is_a_row_and_the_others_run(fake_stages, mnist: Path, capfd) -> None:
    chosen = fake_stages(
        a_bad="import sys; sys.exit('a_bad: the reason')",
        b_killed="import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        c_silent="pass",
        d_good=GOOD,
    )
    assert ladder.climb(chosen, steps=5, batch_size=64, ranks=1) == 1
    out, err = capfd.readouterr()
    assert out.count("FAILED") == 6  # a line when it happens, a row in the table
    assert re.search(r"d_good .* 640 ", out)
    assert "a_bad failed: a_bad: the reason" in err
    assert "b_killed failed: killed by SIGKILL" in err
    assert "c_silent failed: it wrote no results" in err
    rows = json.loads((results_folder() / launch.UNFINISHED / "ladder.json").read_text())["rows"]
    assert ["failed" in row for row in rows] == [True, True, True, False]


def test_a_terminal_gets_a_progress_bar(fake_stages, mnist: Path, tmp_path: Path) -> None:
    shown = Console(force_terminal=True, width=100, file=io.StringIO())
    (row,) = ladder.run_stages(fake_stages(a_good=GOOD), 5, 64, 1, 1, shown, tmp_path)
    text = shown.file.getvalue()
    assert row["img_per_s"] == 640 and "a_good" in text
    assert "640 img/s" in text and "left" in text and "━" in text


@pytest.fixture
def chooses(fake_stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A job of a stage that tells its options, beside a choose.py of this source."""
    monkeypatch.setattr(launch, "CHOSEN", {})

    def make(source: str) -> launch.Job:
        (tmp_path / "choose.py").write_text("import sys, time\n" + source)
        (stage,) = fake_stages(a=GOOD.replace("open(", "row |= dict(words=sys.argv[1:])\nopen("))
        return launch.Job(replace(stage, chooses=True), 5, 64)

    return make


def test_a_stage_gets_what_its_chooser_found_and_asks_once(chooses, mnist: Path) -> None:
    tell = "print('one', file=sys.stderr); print('two', file=sys.stderr); print('--xla off')"
    job, said = chooses(tell), []
    rows = [launch.train(job, say=said.append) for _ in range(2)]
    assert said == ["one", "two"]
    for row in rows:
        assert row["tried"] == {"lines": said, "switches": "--xla off"}
        assert row["words"][-2:] == ["--xla", "off"]
    launch.train(replace(job, batch_size=32), say=said.append)
    assert said == ["one", "two"] * 2


def test_a_chooser_that_finds_nothing(chooses, mnist: Path) -> None:
    row = launch.train(chooses("sys.exit('choose.py: none of them finished')"))
    assert "failed" not in row and "--xla" not in row["words"]
    assert row["tried"] == {"lines": ["choose.py: none of them finished"], "switches": ""}


def test_threads_that_were_chosen_give_way_to_a_ranks_share(chooses, mnist: Path) -> None:
    job = chooses("print('--xla off --threads 1')")
    assert launch.train(job)["words"][-2:] == ["--threads", "1"]
    assert launch.train(replace(job, threads=2))["words"][-2:] == ["--xla", "off"]


def test_an_interrupt_while_choosing(chooses, mnist: Path) -> None:
    job = chooses("print('one', file=sys.stderr, flush=True); time.sleep(100)")

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    row = launch.train(job, say=interrupt)
    assert row["interrupted"] and row["failed"] == "interrupted"
    assert not psutil.Process().children()


def test_ranks_on_a_cpu_share_it_with_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu, cycle in ((False, "5"), (True, None)):
        monkeypatch.setattr(launch, "has_nvidia_gpu", lambda gpu=gpu: gpu)
        monkeypatch.delenv("HOROVOD_CYCLE_TIME", raising=False)
        two = launch.environment(launch.Job(STAGES[0], 5, 64, ranks=2, threads=1))
        assert two.get("HOROVOD_CYCLE_TIME") == cycle and two["TF_NUM_INTRAOP_THREADS"] == "1"
        assert "HOROVOD_CYCLE_TIME" not in launch.environment(launch.Job(STAGES[0], 5, 64))


def test_a_number_may_name_two_stages() -> None:
    assert [s.name for s in stages.choose(["06"])] == ["06_device", "06_optimized"]
    for name in ("06_device", "06_optimized"):
        assert [s.name for s in stages.choose([name])] == [name]
    for stage in STAGES:
        assert f'STAGE = "{stage.name}"' in stage.script.read_text()


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
        "batch_size": 64,
        "warmup_steps": 10,
        "versions": {"tensorflow": "2.17.1"},
        "lines": 12,
    }


def ladder_of(*rows: dict) -> dict:
    ceiling = {"float32": 2e11, "bfloat16": 4e11}
    return {
        "rows": list(rows),
        "steps": 100,
        "ceiling": ceiling,
        "machine": "A CPU",
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
    assert ladder.climb(chosen, steps=5, batch_size=64, ranks=1, repeats=2) == 0
    out = capfd.readouterr().out
    order = re.findall(r"^([ab]) +640 img/s", out, re.M)
    assert order == ["a", "b", "a", "b"]  # in turns
    assert "640 (640 to 640)" in out and "median of 2 runs" in out


@pytest.fixture
def predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What xray would have kept: each stage in float32, and the later ones in 16 bit too."""
    cases = []
    for i, stage in enumerate(STAGES):
        known = {"stage": stage.folder, "script": stage.file, "xla": "off", "compiled_calls": 0}
        cases.append({**known, "precision": "float32", "kernels": 200 + i if i > 1 else None})
        if i > 2:
            xla = {"xla": "on", "kernels": 150 + i, "compiled_calls": 1}
            cases.append({**known, "precision": "float32", **xla})
        if i > 4:
            cases.append({**known, "precision": "mixed_bfloat16", **xla, "kernels": 20 + i})
            cases.append({**known, "precision": "mixed_bfloat16", "xla": "call", "kernels": 1})
    monkeypatch.setattr(table, "PREDICTED", tmp_path / "xray.json")
    table.PREDICTED.write_text(json.dumps({"tensorflow": "2.17.1", "cases": cases}))


def test_the_kernels_are_those_that_an_a100_would_run(predicted) -> None:
    found = ["-", "-", "202", "153+1", "154+1", "25+1", "26+1", "27+1"]
    assert list(table.predictions().values()) == found
    shown = table.markdown(ladder_of(*[row(stage.name, 140.0) for stage in STAGES]))
    assert [line.split(" | ")[-1].strip("| ") for line in shown.splitlines()[2:10]] == found
    assert "kernels, predicted" in shown and "predicted by xray, not measured" in shown
    table.PREDICTED.write_text("{")
    assert "predicted" not in table.markdown(ladder_of(row("00_baseline", 100.0)))


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_fits(width: int, predicted, capsys) -> None:
    rows = [row(stage.name, 140.0) | {"change": stage.change} for stage in STAGES]
    rows[-1] = rows[-1] | {"img_per_s": 1_234_567.0}
    table.show(ladder_of(*rows), Console(width=width))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "1,234,567" in out and "8818x" in out and "98.7 %" in out and "…" not in out
    assert ("153+1" in out) is (width == 160)  # the first to go
    assert (STAGES[-1].change in out) is (width == 160)  # the next


def test_a_run_too_short_to_time_has_not_failed(capsys) -> None:
    rows = [row("00_baseline", 100.0), {**row("02_tf_function", 100.0), "img_per_s": None}]
    table.show(ladder_of(*rows), Console(width=100))
    out = capsys.readouterr().out
    assert "failed" not in out and out.count("02_tf_function") == 2


def test_synthetic_data_is_said_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("00_baseline", 100.0, data="synthetic")]
    shown = table.markdown(ladder_of(*rows))
    assert "SYNTHETIC" in shown and "CPU, 2 cores, A CPU; " in shown and "batch 64, 1 rank" in shown
    titles: list[str] = []
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "suptitle", lambda self, text, **_: titles.append(text))
    table.draw(ladder_of(*rows), tmp_path / "ladder.png")
    assert "SYNTHETIC" in titles[0]


ENDLESS = """
import time
print("x - INFO - (0, 0), Loss: 1.0, step_time: 0.1, throughput: 640.0 img/s.", flush=True)
while True: time.sleep(0.1)
"""


@pytest.mark.parametrize("end", ["SIGKILL", "SIGHUP", "SIGTERM twice", "an exception"])
def test_no_stage_outlives_us(end: str, mnist: Path, tmp_path: Path) -> None:
    """Whatever ends `run`: the stage is not left training alone."""
    (tmp_path / "stage.py").write_text(ENDLESS)
    report = "lambda *_: 1 / 0" if end == "an exception" else "lambda *_: print('up', flush=True)"
    code = f"""
from dataclasses import replace
from pathlib import Path
from tfworkshop import __main__, commands, stages
from tfworkshop.ladder import launch
stages.Stage.script = Path({str(tmp_path / "stage.py")!r})
commands.call = lambda argv: launch.train(launch.Job(stages.STAGES[0], 5, 64), report={report})
__main__.main([])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(tmp_path / "results"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # under nohup too
    )
    assert process.stdout
    if end != "an exception":
        process.stdout.readline()
        (stage,) = psutil.Process(process.pid).children()
        for _ in range(1 + end.endswith("twice")):
            process.send_signal(signal.Signals[end.split()[0]])
            time.sleep(0.2)
        until = time.monotonic() + 30
        with contextlib.suppress(psutil.NoSuchProcess):  # in a container it may stay a zombie
            while stage.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
                time.sleep(0.05)
    process.wait(30)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info)]


SUMS_UP = """
import json, os, signal, sys, time
from pathlib import Path
row = dict(img_per_s=640.0, step_ms_median=100.0, test_accuracy=None, ranks=1, device="CPU")
row |= dict(data="mnist", batch_size=64, warmup_steps=10, versions={}, interrupted=True)
def end(*_):
    Path(sys.argv[sys.argv.index("--results") + 1]).write_text(json.dumps(row))
    sys.exit(130)
signal.signal(signal.SIGINT, end)
Path(__file__).with_name(str(os.getpid())).touch()
while True: time.sleep(0.1)
"""


@pytest.mark.parametrize("by", ["Ctrl+C", "SIGTERM"])
def test_what_stops_run_stops_its_stage(by: str, mnist: Path, tmp_path: Path) -> None:
    """A terminal's Ctrl+C goes to both, and the stage sums up; a batch system's SIGTERM goes to
    `run` alone, and here the stage does not heed what it gets then. No other stage starts."""
    (tmp_path / "stage").mkdir()
    heeds = "signal.signal(signal.SIGINT, end)\n"
    source = SUMS_UP if by == "Ctrl+C" else SUMS_UP.replace(heeds, "")
    (tmp_path / "stage" / "stage.py").write_text(source)
    code = f"""
import sys
from pathlib import Path
from tfworkshop import __main__, commands, stages
from tfworkshop.ladder import ceiling, launch, run
stages.Stage.script = Path({str(tmp_path / "stage" / "stage.py")!r})
ceiling.measure, launch.PATIENCE_S = dict, 1
commands.call = lambda argv: run.run(["02", "03"], 5, 64, 1, 1)
sys.exit(__main__.main([]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(tmp_path / "results"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (up := list((tmp_path / "stage").glob("[0-9]*"))):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        if by == "Ctrl+C":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.terminate()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "")
    assert "03_xla" not in out and not psutil.pid_exists(int(up[0].name))
    told = r"02_tf_function .* img/s" if by == "Ctrl+C" else "FAILED: interrupted"
    assert re.search(told, out)
    kept = tmp_path / "results" / launch.UNFINISHED / "ladder.json"
    assert json.loads(kept.read_text())["rows"][0]["interrupted"] is True


# --- scale ---


def test_the_plan_shares_the_cores() -> None:
    made = [(p.ranks, p.threads, p.exchange) for p in scale.plan([2, 1], cores=8, gpu=False)]
    assert made == [(1, 8, True), (1, 4, True), (2, 4, False), (2, 4, True)]
    assert [(p.ranks, p.threads) for p in scale.plan([1, 4], 64, gpu=True)] == [
        (1, None),
        (4, None),
    ]
    assert [(p.ranks, p.threads) for p in scale.plan([1], 2, gpu=False)] == [(1, 2)]
    with pytest.raises(Problem, match=r"499 ranks on \d+ core\(s\): use \d+ at most"):
        launch.check_size(64, 499)


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


def test_a_scaling_that_failed_leaves_the_last_good_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WORKSHOP_RESULTS", str(tmp_path))
    good = scale.write(STAGES[-1], [scale.Point(1, 2, speeds=[100.0])], "mnist", 64)
    before = good[0].read_bytes()
    bad = scale.write(STAGES[-1], [scale.Point(1, 2, failed="why")], "mnist", 64)
    assert good[0].read_bytes() == before
    assert {path.parent for path in bad} == {tmp_path / launch.UNFINISHED}
