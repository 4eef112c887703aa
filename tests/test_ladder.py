"""`./workshop run`, `bench` and `scale`, with small stand-ins for the stages.

test_docs.py runs them for real.
"""

from __future__ import annotations

import contextlib
import io
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from msgspec import structs
from rich.console import Console

from tests.conftest import stage_environment
from tfworkshop import stages, terminal
from tfworkshop.files import measuring, read_record, results_folder, save_record
from tfworkshop.ladder import bench, ceiling, compare, launch, run, scale, table
from tfworkshop.ladder.launch import Job
from tfworkshop.problem import Problem
from tfworkshop.results import Bench, Ladder, Measured, Row, Scale, ScalePoint
from tfworkshop.stages import ROOT, STAGES, Stage

LOG_LINE = "x - INFO - (0, 0), Loss: 1.0, step_time: 0.1, throughput: 640.0 img/s."
SAMPLE = read_record(ROOT / "docs" / "measured" / "2-core-amd-epyc" / "ladder.json", Ladder)


def row(stage: str, speed: float | None, **changes: object) -> Row:
    return structs.replace(
        SAMPLE.rows[0], stage=stage, img_per_s=speed, test_accuracy=0.987, repeats=[], **changes
    )


def ladder_of(*rows: Row) -> Ladder:
    return structs.replace(SAMPLE, machine="A CPU", rows=list(rows))


SUM_UP = """
from pathlib import Path
import json, signal, sys, time

def sum_up(**changes):
    results = json.loads(Path(__file__).with_name("results.json").read_text())
    results.update(changes, stage=Path(__file__).stem, words=sys.argv)
    Path(sys.argv[sys.argv.index("--results") + 1]).write_text(json.dumps(results))

"""
GOOD = f"{SUM_UP}print({LOG_LINE!r})\nsum_up()"
BAD = "import sys; sys.exit('the reason')"
ENDLESS = f"""{SUM_UP}
def stop(*_):
    sum_up(interrupted=True)
    sys.exit(130)

signal.signal(signal.SIGINT, stop)
Path(__file__).with_name("started").touch()
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mnist: Path):
    """Makes jobs of small scripts: fake(name=source, ...)."""
    monkeypatch.setenv("WORKSHOP_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(ceiling, "measure", lambda: {"float32": 1e11})
    save_record(tmp_path / "results.json", row("a", 640.0))

    def make(**sources: str) -> list[Job]:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        made = [Stage(name, str(tmp_path), "", 1, file=f"{name}.py") for name in sources]
        return [Job(stage, steps=5, batch_size=64) for stage in made]

    return make


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# --- run ---


@pytest.mark.parametrize(
    ("stages", "batch_size", "ranks"),
    [(["07"], 64, 1), ([], 60001, 1), ([], 30001, 2), ([], 64, 500)],
)
def test_what_cannot_work_is_refused_first(
    stages: list[str], batch_size: int, ranks: int, fake, tmp_path: Path
) -> None:
    with pytest.raises(Problem):
        run.run(stages, 5, batch_size, ranks, repeats=1)
    assert not (tmp_path / "results").exists()


def test_one_measurement_at_a_time(fake) -> None:
    with measuring(results_folder()), pytest.raises(Problem, match="another"):
        run.run(["02"], 5, 64, 1, 1)


def test_only_a_good_run_replaces_the_last_one(fake, capfd) -> None:
    assert run.climb(fake(a=GOOD)) == 0
    results = results_folder()
    before = files_in(results)
    names = {path.name for path in before}
    assert {"a.json", "a.log", "a.err", "ladder.json", "ladder.md", "ladder.png"} <= names
    assert run.climb(fake(a=BAD, b=GOOD)) == 1
    assert files_in(results) == before
    ladder = read_record(results / run.UNFINISHED / "ladder.json", Ladder)
    assert [failure.stage for failure in ladder.failed] == ["a"]
    assert [row.stage for row in ladder.rows] == ["b"]
    assert "the reason" in capfd.readouterr().err
    assert not list(results.glob("running-*"))


def test_repeats_take_turns_and_show_their_spread(fake, capfd) -> None:
    assert run.climb(fake(a=GOOD, b=GOOD), repeats=2) == 0
    out = capfd.readouterr().out
    assert re.findall(r"^([ab]) +640 img/s", out, re.M) == ["a", "b", "a", "b"]
    assert "640 (640 to 640)" in out


def test_the_median_run_is_the_row() -> None:
    rows = [row("02", speed) for speed in (1000.0, 3000.0, 2000.0)]
    median = run.median_row(rows)
    assert (median.img_per_s, median.repeats) == (2000, [1000, 3000, 2000])
    interrupted = row("02", 9000.0, interrupted=True)
    assert run.median_row([*rows[:2], interrupted]).img_per_s == 1000


def test_a_terminal_gets_a_progress_bar(fake, tmp_path: Path) -> None:
    screen = Console(force_terminal=True, width=100, file=io.StringIO())
    outcomes: list = []
    run.train_all(fake(a=GOOD), tmp_path, screen, outcomes)
    text = screen.file.getvalue()
    assert outcomes[0].img_per_s == 640
    assert "640 img/s" in text and "left" in text and "━" in text


def test_profiles_are_moved_with_their_run(fake, tmp_path: Path) -> None:
    source = f"""{SUM_UP}
logdir = Path(sys.argv[sys.argv.index("--logdir") + 1])
logdir.mkdir(parents=True)
(logdir / "profile").touch()
sum_up(logdir=str(logdir))
"""
    (job,) = fake(a=source)
    assert run.climb([replace(job, stage=replace(job.stage, profiles=True))]) == 0
    (stage,) = read_record(results_folder() / "ladder.json", Ladder).rows
    assert stage.logdir == str(results_folder() / "logs" / "a")
    assert (Path(stage.logdir) / "profile").exists()


@pytest.mark.parametrize("steps", [4, 12, 21, 24, 100])
def test_a_profiled_stage_still_has_steps_for_the_clock(steps: int) -> None:
    first, last = launch.profiled_steps(steps)
    timed = [step for step in range(10, steps) if not first <= step <= last]
    assert 0 <= first <= last < steps
    assert len(timed) >= min(last - first + 1, steps - 10)


def test_ctrl_c_keeps_what_was_measured(fake, tmp_path: Path) -> None:
    """The signal reaches `run`, but not its endless stage b."""
    fake(a=GOOD, b=ENDLESS, c=GOOD)
    code = f"""
import signal, sys
from tfworkshop.ladder import ceiling, launch, run
from tfworkshop.stages import Stage
signal.signal(signal.SIGINT, signal.default_int_handler)
ceiling.measure = dict
stages = [Stage(name, {str(tmp_path)!r}, "", 1, name + ".py") for name in ("a", "b", "c")]
sys.exit(run.climb([launch.Job(stage, 5, 64) for stage in stages]))
"""
    environment = stage_environment(PYTHONPATH=str(ROOT))
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    ladder = read_record(tmp_path / "results" / run.UNFINISHED / "ladder.json", Ladder)
    assert [(row.stage, row.interrupted) for row in ladder.rows] == [("a", False), ("b", True)]
    assert not (tmp_path / "results" / "ladder.json").exists()


def test_no_process_outlives_a_killed_parent() -> None:
    code = "from tfworkshop import processes; processes.run(['sleep', '100'])"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as process:
        parent = psutil.Process(process.pid)
        while [child.name() for child in parent.children()] != ["sleep"]:
            time.sleep(0.1)
        (sleep,) = parent.children()
        process.kill()
    deadline = time.monotonic() + 30
    with contextlib.suppress(psutil.NoSuchProcess):
        while sleep.status() != psutil.STATUS_ZOMBIE:  # nobody may reap it in a container
            assert time.monotonic() < deadline
            time.sleep(0.1)


# --- what a stage is started with ---


@pytest.fixture
def chooser(fake, tmp_path: Path):
    """A job with a choose.py of this source beside its script."""
    launch.choose.cache_clear()

    def make(source: str) -> Job:
        (tmp_path / "choose.py").write_text(f"import sys\n{source}")
        (job,) = fake(a=GOOD)
        return replace(job, stage=replace(job.stage, chooses=True))

    yield make
    launch.choose.cache_clear()


def words_of(folder: Path) -> list[str]:
    return read_record(folder / "a.json", dict)["words"]


def test_a_stage_gets_what_choose_found(chooser, tmp_path: Path, capfd) -> None:
    job = chooser("print('one', file=sys.stderr); print('--xla off --threads 1')")
    for _ in range(2):
        trained = launch.train(job, tmp_path)
    assert capfd.readouterr().out == "one\n"  # asked once
    assert trained.tried and trained.tried.lines == ["one"]
    assert words_of(tmp_path)[-4:] == ["--xla", "off", "--threads", "1"]
    launch.train(replace(job, threads=2), tmp_path)  # the ranks have their own share
    assert words_of(tmp_path)[-2:] == ["--xla", "off"]


def test_a_chooser_that_finds_nothing(chooser, tmp_path: Path) -> None:
    trained = launch.train(chooser("sys.exit('none of them finished')"), tmp_path)
    assert trained.tried and trained.tried.switches == ""
    assert "--xla" not in words_of(tmp_path)


def test_a_number_may_name_two_stages() -> None:
    assert [stage.name for stage in stages.choose(["06"])] == ["06_device", "06_optimized"]
    assert [stage.name for stage in stages.choose(["06_device"])] == ["06_device"]
    for stage in STAGES:
        assert f'STAGE = "{stage.name}"' in stage.script.read_text()


# --- the table ---


def test_the_share_of_the_ceiling() -> None:
    """71.6 MFLOP an image: 1,000 images a second of a device that does 200 GFLOP/s."""
    peaks = {"float32": 2e11, "bfloat16": 4e11}
    assert table.share_of_ceiling(row("00", 1000.0), peaks) == pytest.approx(0.3578, abs=1e-4)
    reduced = row("05", 1000.0, precision="mixed_bfloat16")
    assert table.share_of_ceiling(reduced, peaks) == pytest.approx(0.1789, abs=1e-4)
    assert table.share_of_ceiling(reduced, {}) is None


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_fits(width: int, capsys) -> None:
    rows = [row(stage.name, 140.0, change=stage.change) for stage in STAGES]
    rows[-1].img_per_s = 123_456.0
    rows[-2].img_per_s = None  # too short to time
    table.show(ladder_of(*rows), Console(width=width))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "123,456" in out and "882x" in out and "98.7 %" in out and "…" not in out
    assert (STAGES[-1].change in out) is (width == 160)
    assert re.search(r"^06_device .* - +-", out, re.M)


# --- bench and scale ---


def test_alternatives_take_turns(capsys) -> None:
    speeds = {"fast": 300.0, "middle": 200.0, "slow": 100.0}
    alternatives = [Measured(name) for name in speeds]
    order: list[str] = []

    def train(alternative: Measured) -> float:
        order.append(alternative.name)
        return speeds[alternative.name] + len(order)

    compare.measure(alternatives, 2, train, terminal.console(), skip_slow=True)
    assert order == ["fast", "middle", "slow", "fast", "middle"]
    assert [alternative.speed for alternative in alternatives] == [302.5, 203.5, 103]


def test_the_best_fit_is_what_counts() -> None:
    speeds = {"06_optimized": 300.0, "model.fit, a": 100.0, "model.fit, b": 200.0}
    rows = [Measured(name, repeats=[speed]) for name, speed in speeds.items()]
    comparison = Bench(batch_size=1, steps=10, data="mnist", rows=rows)
    assert bench.verdict(comparison) == "batch 1: 06 is 1.50x the best model.fit, b"
    assert [line[-1] for line in bench.cells(comparison)] == ["-", "3.00x", "1.50x"]


def test_16_bit_is_compared_with_16_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "has_nvidia_gpu", lambda: False)
    names = [way.name for way in bench.ways_to_train(sixteen_bit=False)]
    assert names[:2] == ["06_optimized", "02_tf_function"]
    more = {way.name for way in bench.ways_to_train(sixteen_bit=True)} - set(names)
    assert more == {"model.fit, tf.data, 10 steps a call, bfloat16"}


def test_the_plan_shares_the_cores() -> None:
    points = scale.plan([2, 1], cores=8, gpu=False)
    kinds = [(point.ranks, point.threads, point.exchange) for point in points]
    assert kinds == [(1, 8, True), (1, 4, True), (2, 4, False), (2, 4, True)]
    assert [point.name for point in scale.plan([4, 1], 64, gpu=True)] == ["1", "4"]
    assert [point.threads for point in scale.plan([1], cores=2, gpu=False)] == [2]


def test_independent_processes(fake, tmp_path: Path) -> None:
    (job,) = fake(a=GOOD)
    assert scale.train_independently(job, 3, tmp_path) == 3 * 640
    (job,) = fake(a=BAD)
    with pytest.raises(launch.StageFailed, match=r"a_0\.log"):
        scale.train_independently(job, 2, tmp_path)


def test_efficiency_is_against_one_rank_of_the_same_kind() -> None:
    points = [
        ScalePoint("1 x 2", [100.0], ranks=1, threads=2),
        ScalePoint("1 x 1", [60.0, 50.0, 70.0], ranks=1, threads=1),
        ScalePoint("2 x 1, no exchange", [118.0], ranks=2, threads=1, exchange=False),
        ScalePoint("2 x 1", [114.0], ranks=2, threads=1),
    ]
    scaling = Scale("06_optimized", 64, "mnist", points)
    lines = scale.cells(scaling)
    assert [line[-1] for line in lines] == ["-", "100%", "-", "95%"]
    assert lines[1] == ["1 x 1", "60.0", "50.0 to 70.0", "60.0", "100%"]
    assert re.findall(r"([\d.]+)x", scale.verdict(scaling)) == ["1.14", "1.18"]
