"""What goes wrong on real machines, as one table: real processes, one line, and nothing is lost.

The nine kinds of fault: bad input costs nothing that was there (1), nothing is left running (2), a
training that was fine keeps its results (3), what is read may be anything (4), so may the
environment (5), two at once (6), ranks that wait for ever (7), text from elsewhere (8), and wrong
options (9). Signals are also in test_ladder.py, every option of the stages in test_bad_input.py.
"""

from __future__ import annotations

import fcntl
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.conftest import said, stage_environment
from tfworkshop import commands
from tfworkshop.stages import ROOT

# --- commands: what there is before, what is typed, and what is said ---


@dataclass
class Case:
    kind: int  # of fault
    typed: str  # in bash; workshop is `python -m tfworkshop`
    says: str  # the only line on stderr; empty: it works
    before: str = ""
    status: tuple[int, ...] = ()  # if not 0 for what works, 1 or 2 for what does not


DEEP = "printf '[%.0s' {1..100000}"
LADDER = "mkdir results; echo '{}' > results/ladder.json".format
GOOD = LADDER('{"rows": [1]}')
MINE = "workshop exercise 02 >/dev/null; cd my/02; "
ROW = (
    '{"stage": "\\u001b]0;title\\u0007[/red]", "change": "<script>|", "lines": 1, "ranks": 1, '
    '"step_ms_median": 1, "img_per_s": 1, "test_accuracy": 1, "device": "CPU", "data": "mnist", '
    '"versions": {}, "batch_size": 1, "warmup_steps": 1}'
)
WHOLE = f'{{"rows": [{ROW}], "ceiling": {{}}, "commit": "", "date": "", "steps": 1}}'
MARKDOWN = """
import json, sys
from pathlib import Path
from tfworkshop.ladder import table
made = table.markdown(json.loads(Path("results/ladder.json").read_text()))
sys.exit("<" in made or made.count("|") % (made.count("--:") + 3))
"""
COMMANDS = [name for name in commands.NAMES if name != "test"]  # those are pytest's
VALUES = [  # every option that takes a value, without one and with a wrong one
    f"{name} {' 1' * (name in ('exercise', 'report'))} {names[0]}{wrong}"
    for name, _, _, options in commands.COMMANDS
    for names, settings in options
    if names[0].startswith("--") and settings.get("action") != "store_true"
    if settings.get("nargs") != "?"
    for wrong in ("", *([" 0", " x"] if settings.get("type") is commands.at_least_one else []))
]
NOT_OURS = "ladder.json is not one of ./workshop run: run it again"

CASES = [
    # 1: bad input must not cost what was there
    Case(1, "workshop run --batch-size 60001", "is more than the 60000 images", GOOD),
    Case(1, "workshop run --stages 07", "no stage 07", GOOD),
    Case(1, "workshop run --stages ,", "--stages names no stage", GOOD),
    Case(1, "workshop scale --ranks 1 500", "500 ranks on", GOOD),
    Case(1, "workshop bench --batch-size 64 60001", "is more than the 60000 images", GOOD),
    Case(
        1, "workshop report p.xplane.pb --json p.xplane.pb", "the profile itself", "> p.xplane.pb"
    ),
    Case(1, "workshop report logs --json x.xplane.pb", "named like a profile"),
    Case(1, "workshop report logs --json a --html ./a", "a is named for two outputs"),
    Case(1, "workshop report logs --html notes", "notes is there, and something", "echo x > notes"),
    Case(1, "workshop report t.json --json t.json", "the timeline itself", "echo '[]' > t.json"),
    Case(1, "workshop report t.json --json notes", "something else", "date | tee t.json > notes"),
    Case(1, "workshop xray 02 --json notes", "notes is there, and something", "echo x > notes"),
    Case(1, "workshop data --synthetic --output folder", "cannot write folder", "mkdir folder"),
    # 2: ranks that could never be started
    Case(2, "workshop run --ranks 1000 --batch-size 1", "1000 ranks on", GOOD),
    # 4: what is read from disk may be anything
    Case(4, "workshop results", NOT_OURS, LADDER("[]")),
    Case(4, "workshop results", NOT_OURS, LADDER('{"rows": []}')),
    Case(4, "workshop results", NOT_OURS, LADDER(ROW.join(['{"rows": [', "]}"]))),
    Case(4, "workshop results", NOT_OURS, LADDER('{"rows": [{"stage": 4, "failed": 1}]}')),
    Case(4, "workshop results", "ladder.json", "mkdir -p results/ladder.json"),
    Case(4, "workshop report t.json", "t.json is no timeline", f"{DEEP} > t.json"),
    Case(4, "workshop report t.json", "t.json is no timeline", "echo '[{\"ts\": []}]' > t.json"),
    Case(4, "workshop report t.json", "t.json is not a file", "mkfifo t.json"),
    Case(4, "workshop report p.xplane.pb", "p.xplane.pb is no file", "mkfifo p.xplane.pb"),
    Case(4, "workshop check", "", MINE + f"{DEEP} > check.json"),
    Case(4, "workshop check", "", MINE + "mkfifo check.json"),
    Case(4, "workshop check", "", MINE + 'echo \'{"speeds": {"yours": "fast"}}\' > check.json'),
    Case(4, "workshop check", "", MINE + 'echo \'{"speeds": {"yours": 1e999}}\' > check.json'),
    Case(4, "workshop check 02 --hint", "", MINE + "echo '{\"shown\": 1e999}' > hints.json"),
    Case(4, "workshop check 02 --hint", "", MINE + f"{DEEP} > hints.json"),
    Case(4, "workshop check 02 --hint", "hints.json .Is a dir", MINE + "mkdir hints.json"),
    Case(
        4,
        "workshop check 02",
        "train_MNIST.py is not a file.*--fresh",
        "mkdir -p my/02/train_MNIST.py",
    ),
    Case(4, "workshop exercise 02", "my.*WORKSHOP_MY=FOLDER", "> my"),
    Case(
        4,
        "workshop mystery",
        "",
        "mkdir -p my/mystery_3; > my/mystery_3/train_MNIST.py; "
        "echo '{\"tries\": 5}' > my/mystery_3/answers.json",
    ),
    Case(4, "workshop data --synthetic --output pipe", "cannot write pipe", "mkfifo pipe"),
    Case(
        4,
        "workshop results --keep",
        "no ladder.json in",
        "mkdir results; mkfifo results/ladder.json",
    ),
    # 5: the environment may be anything
    Case(5, "WORKSHOP_RESULTS=/proc/x workshop run", "cannot write to /proc/x .*WORKSHOP_RESULTS="),
    Case(5, "WORKSHOP_RESULTS=file workshop run", "file: File exists.*WORKSHOP_RESULTS=", "> file"),
    Case(5, "ulimit -f 0; workshop check 02 --hint", "hints.json .File too large", MINE),
    Case(5, "workshop check > /dev/full", "cannot write the output: No space left on device"),
    Case(5, "workshop check >&-", ""),
    Case(5, "workshop check | true; exit ${PIPESTATUS[0]}", "", status=(0, 1, 141)),
    Case(5, "PYTHONIOENCODING=ascii workshop check", ""),
    Case(5, "COLUMNS=20 workshop check", ""),
    Case(
        5,
        "workshop check",
        "No module named 'rich'. ./workshop doctor says",
        "mkdir rich; echo "
        "'raise ModuleNotFoundError(\"No module named '\"'rich'\"'\")' > rich/__init__.py",
    ),
    Case(5, "PMI_RANK= SLURM_PROCID=a1 workshop mystery", ""),
    # 6: two at once
    *(
        Case(6, f"flock results/.lock bash -c 'python -m tfworkshop {words}'", "is measuring into", GOOD)
        for words in ("run", "scale --ranks 1", "bench")
    ),
    # 8: text from elsewhere
    Case(8, "workshop results", "", LADDER(WHOLE)),
    Case(8, f"python -c '{MARKDOWN}'", "", LADDER(WHOLE)),
    # 9: options
    Case(9, "entry nonsense", "no command 'nonsense'. Type one of: run"),
    Case(
        9, "entry run --nonsense", "unrecognized arguments: --nonsense. Type: ./workshop run --help"
    ),
    Case(9, "entry --help > /dev/full", "the output: No space left on device"),
    Case(9, "entry run --help > /dev/full", "the output: No space left on device"),
    *(Case(9, f"workshop {name} --nonsense", "--nonsense|: .* required") for name in COMMANDS),
    *(
        Case(9, f"workshop {words}", "expected (at least )?one argument|no whole number")
        for words in VALUES
    ),
    Case(9, "workshop report ''", "argument logdir: the name is empty"),
    Case(9, "workshop run --steps ²", "argument --steps: ² is no whole number from 1 on"),
    Case(9, "workshop run --steps $(printf '9%.0s' {1..5000})", "9+ is no whole number from 1 on"),
]


def look(folder: Path) -> dict[str, str]:
    """Every file with its content; a pipe is not read."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            what = path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
            found[str(path.relative_to(folder))] = str(what)
    return {name: what for name, what in found.items() if not name.endswith(".lock")}


PRELUDE = """
workshop() { "$PYTHON" -m tfworkshop "$@"; }
python() { "$PYTHON" "$@"; }
entry() { "$PYTHON" "$ROOT/workshop" "$@"; }
export -f python
"""


def bash(text: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    places = {"WORKSHOP_RESULTS": str(folder / "results"), "WORKSHOP_MY": str(folder / "my")}
    given = {"PYTHON": sys.executable, "ROOT": str(ROOT), "PYTHONPATH": str(ROOT)}
    given["PYTHONDONTWRITEBYTECODE"] = "1"
    env = {**stage_environment(**places, **given), "PYTHONUNBUFFERED": "", **env}
    return subprocess.run(
        ["bash", "-c", PRELUDE + text],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.typed[:60]}")
def test_a_fault_is_one_line_and_costs_nothing(case: Case, tmp_path: Path) -> None:
    prepared = bash(case.before, tmp_path)
    assert prepared.returncode == 0, prepared.stderr
    before = look(tmp_path)
    ended = bash(case.typed, tmp_path)
    lines = ended.stderr.splitlines()
    assert ended.returncode in (case.status or ((1, 2) if case.says else (0,))), ended.stderr
    assert len(lines) == bool(case.says), ended.stderr
    assert re.search(case.says, "".join(lines)), ended.stderr
    assert not re.search(r"Traceback|\[Errno|at_least_one|\x1b", ended.stdout + ended.stderr)
    if case.says:
        assert look(tmp_path) == before


# --- stages: as processes that end as any Python does, with TensorFlow loaded once ---

TRAIN = ["--steps", "3", "--batch-size", "16", "--data", "d.npz"]
KEEP = [*TRAIN, "--results", "r.json"]
# By name: the stage, its options, where stdout goes, what happens, its only line on stderr, and the
# steps of the results that it keeps.
PROFILE = [*KEEP, "--logdir", "logs", "--profile-steps", "1", "1"]
OLD = '{\n  "stage": "the old one"\n}'
STAGES = {
    "1: results in the place of data": (
        "02",
        [*TRAIN, "--results", "d.npz"],
        "out",
        "",
        "name an",
        0,
    ),
    "3: a full disk on the screen": ("02", KEEP, "/dev/full", "", "cannot go on: .*No space", 3),
    "3: | head -1": ("02", KEEP, "unread", "", "cannot go on: .*Broken pipe", 3),
    "3: >&-": ("02", KEEP, "closed", "", " - INFO - ", 3),
    "3: the data goes away": ("02", KEEP, "out", "later(lambda: vanish('d.npz'))", "", 3),
    "3: a logdir that goes away": ("06", PROFILE, "out", "later(lambda: vanish('logs'))", "", 3),
    "3: a logdir without room": (
        "04",
        PROFILE,
        "out",
        "limit(10**6)",
        "cannot go on: .*too large",
        0,
    ),
    "3: a disk that becomes full": (
        "04",
        PROFILE,
        "out",
        "later(lambda: limit(20_000))",
        "cannot go on: .*too large",
        1,
    ),
    "3: no room for results": (
        "00",
        KEEP,
        "out",
        f"later(lambda: limit(100)); Path('r.json').write_text({OLD!r})",
        "too large",
        0,
    ),
    "3: results whose folder goes away": (
        "02",
        [*TRAIN, "--results", "place/r.json"],
        "out",
        "later(lambda: vanish('place'))",
        "cannot go on: .*place",
        0,
    ),
    "3: letters that the screen lacks": (
        "02",
        [*TRAIN, "--results", "\N{SNOWMAN}/../r.json"],
        "out",
        "sys.stdout.reconfigure(encoding='ascii')",
        "cannot go on: .*ascii",
        3,
    ),
    "8: a link stays a link": (
        "02",
        [*TRAIN, "--results", "link"],
        "out",
        "Path('link').symlink_to('r.json')",
        "",
        3,
    ),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, Path]]:
    """How each of them ended, and its folder."""
    top, jobs = tmp_path_factory.mktemp("stages"), []
    random = np.random.default_rng(0)
    images, labels = (random.integers(0, 10, shape, np.uint8) for shape in ((64, 28, 28), 64))
    for i, (number, words, stdout, first, *_) in enumerate(STAGES.values()):
        folder = top / str(i)
        folder.mkdir()
        np.savez(folder / "d.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
        (script,) = ROOT.glob(f"{number}_*/train_MNIST.py")
        job = {"script": str(script), "words": words, "folder": str(folder), "stdout": stdout}
        jobs.append({**job, "first": first})
    (top / "jobs.json").write_text(json.dumps(jobs))
    env = stage_environment(TF_CPP_MIN_LOG_LEVEL="2")
    command = [sys.executable, "-m", "tests.forks", str(top / "jobs.json")]
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    statuses = json.loads(ended.stdout.splitlines()[-1])
    return {name: (status, top / str(i)) for i, (name, status) in enumerate(zip(STAGES, statuses))}


@pytest.mark.parametrize("name", STAGES)
def test_a_training_that_was_fine_keeps_its_results(name: str, trained) -> None:
    *_, says, steps = STAGES[name]
    status, folder = trained[name]
    lines = said((folder / "err.txt").read_text())
    assert re.search(says, "".join(lines)), lines
    if "INFO" in says:  # the log goes there instead
        assert (status, len(lines)) == (0, 3)
    else:
        assert (status, len(lines)) == (bool(says), bool(says)), lines
    if steps:
        kept = json.loads((folder / "r.json").read_text())
        assert kept["data"] == "mnist" and kept["warmup_steps"] == steps
    elif "no room for results" in name:
        assert (folder / "r.json").read_text() == OLD
    else:
        assert not (folder / "r.json").exists()
    if "folder goes away" in name:
        assert "final_loss" in (folder / "out").read_text()  # on the screen all the same
    with suppress(FileNotFoundError):
        assert np.load(folder / "d.npz")["y_train"].size == 64
    assert (folder / "link").is_symlink() == ("link" in name)


# --- processes that must not be left alone, and ranks that must not wait for ever ---

ENDLESS = """
import os, time
open("pid." + os.environ.get("HOROVOD_RANK", str(os.getpid())), "w").close()
while True: time.sleep(0.1)
"""
STUCK = f"""
import os, runpy, time
import numpy
load = numpy.load
numpy.load = lambda path: time.sleep(600) if os.environ["HOROVOD_RANK"] == "1" else load(path)
runpy.run_path({str(ROOT / "02_tf_function" / "train_MNIST.py")!r}, run_name="__main__")
"""
CALL = """
import json
from pathlib import Path
from tfworkshop import __main__, commands, data, stages
from tfworkshop.ladder import launch, scale
stages.Stage.script = Path("stage.py").resolve()
data.DEFAULT_PATH = Path("d.npz").resolve()
def call(argv):
    print(json.dumps({}))
commands.call = call
__main__.main([])
"""
ALONE = "scale.train(stages.STAGES[0], scale.Point(2, 1, exchange=False), 5, 64)"
RANKS = "launch.train(launch.Job(stages.STAGES[0], 3, 16, 2, 1))"


def started(call: str, stage: str, folder: Path, **env: str) -> subprocess.Popen[str]:
    """A command's inner part, with a script in the place of a stage."""
    (folder / "stage.py").write_text(stage)
    return subprocess.Popen(
        [sys.executable, "-c", CALL.replace("{}", call)],
        cwd=folder,
        env=stage_environment(
            PYTHONPATH=str(ROOT), WORKSHOP_RESULTS=str(folder / "results"), **env
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def below(folder: Path) -> list[psutil.Process]:
    """All processes that run in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


@pytest.mark.parametrize(
    ("call", "numbers"),
    [(ALONE, [signal.SIGTERM]), (RANKS, [signal.SIGKILL]), (RANKS, [signal.SIGTERM] * 3)],
    ids=["2: processes without exchange", "2: ranks, killed", "2: ranks, SIGTERM three times"],
)
def test_nothing_is_left_running(call: str, numbers: list[int], tmp_path: Path) -> None:
    if call is RANKS:
        pytest.importorskip("horovod", reason="needs Horovod: ./workshop setup --horovod")
    process = started(call, ENDLESS, tmp_path)
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("pid.*"))) < 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.5)
        process.wait(40)
        deadline = time.monotonic() + 20
        while below(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert below(tmp_path) == []
    finally:
        for left in below(tmp_path):
            left.kill()


@pytest.mark.timeout(120)
def test_a_rank_that_is_stuck_before_the_first_exchange(tmp_path: Path) -> None:
    """7: the others wait for it, but not for ever; and the line says which one it is."""
    pytest.importorskip("horovod", reason="needs Horovod: ./workshop setup --horovod")
    images = np.zeros((64, 28, 28), np.uint8)
    labels = np.zeros(64, np.uint8)
    np.savez(tmp_path / "d.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    process = started(RANKS, STUCK, tmp_path, WORKSHOP_WAIT_S="10")
    try:
        out, err = process.communicate(timeout=100)
    finally:
        for left in below(tmp_path):
            left.kill()
    row = json.loads(out.splitlines()[-1])
    told = "rank 1 did not read the data in time: stuck in read_mnist"
    assert (row["failed"], err) == (told, "")
    assert below(tmp_path) == []


def test_a_file_system_that_does_not_answer(tmp_path: Path) -> None:
    """4: a lease makes others wait for a file, as a dead file system does."""
    path = tmp_path / "r.json"
    path.write_text("{}")
    code = "from pathlib import Path; from tfworkshop import __main__, commands, files; "
    code += "files.PATIENCE_S = 1; commands.call = lambda argv: files.read_json(Path('r.json')); "
    with path.open("r+") as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        old = signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            ended = subprocess.run(
                [sys.executable, "-c", code + "__main__.main([])"],
                cwd=tmp_path,
                env=stage_environment(PYTHONPATH=str(ROOT)),
                capture_output=True,
                text=True,
                timeout=20,
            )
        finally:
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            signal.signal(signal.SIGIO, old)
    assert "no answer in 1 s. Is its file system there?" in ended.stderr
