"""Mysteries: each cause shows in the tool that MYSTERIES.md names and in no other's evidence.

All of them, and a healthy script, run in this process; two ranks are started once (two_ranks.py).
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from tests import two_ranks
from tests.conftest import run_main, stage_environment
from tests.test_exercises import call, workshop
from tfworkshop.exercises import trial
from tfworkshop.mysteries import cure, evidence, picture
from tfworkshop.mysteries.causes import BY_NAME, CAUSES
from tfworkshop.mysteries.evidence import Facts
from tfworkshop.mysteries.scripts import MYSTERIES, Mystery, made
from tfworkshop.report import command as report
from tfworkshop.report import horovod_timeline
from tfworkshop.stages import ROOT

HEALTHY = Mystery(0, "")
ALL = [*MYSTERIES, HEALTHY]


def options(mystery: Mystery) -> list[object]:
    """Small, where that shows it too; to trace takes long."""
    batch = 64 if mystery.cause in ("input", "clock") else 16
    steps, window = (8, [5, 6]) if mystery.cause == "retracing" else (12, [7, 10])
    words = ["--steps", steps, "--batch-size", batch, "--xla", "off"]
    return [*words, "--logdir", "logs", "--profile-steps", *window]


@pytest.fixture(scope="module")
def my(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("my")


@pytest.fixture(scope="module")
def facts_of(my: Path, small: Path) -> Callable[[Mystery], Facts]:
    """What the tools leave in a mystery's folder, as an attendee's own would."""
    known: dict[int, Facts] = {}

    def facts(mystery: Mystery) -> Facts:
        if mystery.number not in known:
            folder = my / f"mystery_{mystery.number}"
            use_tools(mystery, folder, small)
            known[mystery.number] = evidence.read(folder, made(mystery))
        return known[mystery.number]

    return facts


def use_tools(mystery: Mystery, folder: Path, small: Path) -> None:
    """Log, profile and line profile of one run; then xray, without XLA."""
    import line_profiler

    from tfworkshop.xray import capture, predict

    folder.mkdir()
    script = folder / "train_MNIST.py"
    script.write_text(made(mystery))
    lines, logger = line_profiler.LineProfiler(), capture.tf.get_logger()
    before, level = Path.cwd(), logger.level
    os.chdir(folder)
    try:
        with mock.patch.object(line_profiler, "profile", lines):
            module = capture.load(script)
        ended = run_main(module, *options(mystery), "--data", small)
        assert ended.status == 0, ended.stderr
        lines.dump_stats(evidence.LPROF)
        Path(evidence.LOG).write_text(ended.stdout)
    finally:
        os.chdir(before)
        capture.tf.config.experimental.set_synchronous_execution(True)
    with tempfile.TemporaryDirectory() as place:
        words = ["--data", str(capture.black_images(Path(place), 1000)), "--xla", "off"]
        case = predict.figures(capture.Script(script).step([*words, "--steps", "100"]))
    capture.tf.config.experimental.set_synchronous_execution(True)
    logger.setLevel(level)
    (folder / evidence.XRAY).write_text(json.dumps({"cases": [case]}))


def fitting(facts: Facts) -> list[str]:
    """The causes that these figures speak for; all but those of many ranks must have figures."""
    found = {cause.name: cause.look(facts) for cause in CAUSES}
    missing = {name for name, says in found.items() if says is None}
    assert missing <= {"straggler", "exchange"}, missing
    return [name for name, says in found.items() if says and says[0]]


@pytest.mark.parametrize("mystery", ALL, ids=lambda mystery: str(mystery.number))
def test_a_cause_shows_in_its_tool_and_nowhere_else(mystery: Mystery, facts_of) -> None:
    alone = [] if mystery.cause in ("", "straggler") else [mystery.cause]
    assert fitting(facts_of(mystery)) == alone, facts_of(mystery)


@pytest.mark.slow
def test_a_rank_that_is_late(small: Path) -> None:
    folder = two_ranks.ran(small)
    late, *healthy = (
        Facts(timeline=evidence.read_timeline(folder / name / "timeline.json"))
        for name in ("mystery_7", *two_ranks.HEALTHY)
    )
    for name, fits in (("straggler", True), ("exchange", False)):
        look = BY_NAME[name].look
        assert look(late)[0] is fits, late
        assert not all(look(facts)[0] for facts in healthy), healthy  # one may have been disturbed
    assert late.timeline.late_rank == 1


@pytest.mark.slow
def test_a_horovod_job_of_a_stranger(small: Path) -> None:
    """As TAKE_HOME.md says: rank 0 alone leaves a profile; and there is a timeline."""
    folder = two_ranks.ran(small) / "stranger"
    assert len(list((folder / "logs").rglob("*.xplane.pb"))) == 1
    steps = report.load(folder / "logs")[0].steps.per_step
    assert [int(step.name.split()[-1]) for step in steps] == list(range(20, 30))
    assert horovod_timeline.read(folder / "timeline.json").steps == 40


# --- the scripts ---


def test_every_cause_is_hidden_once_and_some_nowhere() -> None:
    hidden = [mystery.cause for mystery in MYSTERIES]
    assert len(set(hidden)) == len(hidden) == 7 and set(hidden) < set(BY_NAME)
    assert [mystery.number for mystery in MYSTERIES] == list(range(1, 8))


@pytest.mark.parametrize("mystery", MYSTERIES, ids=lambda mystery: str(mystery.number))
def test_nothing_in_a_script_gives_it_away(mystery: Mystery) -> None:
    """Against the healthy one it has no new comment, and no new name that tells."""
    text, healthy = made(mystery), made(Mystery(mystery.number, ""))
    ast.parse(text)
    assert max(map(len, text.splitlines())) <= 100
    comments, names = (
        set(re.findall(form, text)) - set(re.findall(form, healthy)) for form in (r"#.*", r"\w+")
    )
    assert text != healthy and not comments
    telling = re.compile(f"{'|'.join(BY_NAME)}|slow|wait|serial|trac|late$")
    assert not list(filter(telling.search, names))


def test_a_patch_that_no_longer_fits_is_noticed() -> None:
    for old in ("no such line", "import"):
        with pytest.raises(ValueError, match=r"mystery 1: \d+ times in 04_tf_profiler"):
            made(Mystery(1, "", (old, "")))


# --- the command ---


def test_making_one(tmp_path: Path) -> None:
    for mystery in MYSTERIES:
        ended = workshop("mystery", str(mystery.number), my=tmp_path)
        assert ended.returncode == 0, ended.stderr
        file = tmp_path / f"mystery_{mystery.number}" / "train_MNIST.py"
        assert file.read_text() == made(mystery)
        assert mystery.cause not in ended.stdout.replace("timeline", "").replace("python ", "")
        file.write_text("mine")
        again = workshop("mystery", f"0{mystery.number}", my=tmp_path)
        assert "was not touched" in " ".join(again.stdout.split())
    assert (tmp_path / "data").is_symlink()
    assert "train_MNIST.1.py" in workshop("mystery", "2", "--fresh", my=tmp_path).stdout
    assert (tmp_path / "mystery_2" / "train_MNIST.py").read_text() == made(MYSTERIES[1])


@pytest.mark.parametrize("mystery", MYSTERIES, ids=lambda mystery: str(mystery.number))
def test_answers(mystery: Mystery, facts_of, my: Path, small: Path) -> None:
    """Right or wrong, with the figure of the attendee's own run; nothing told that is not asked."""
    facts_of(mystery)
    if mystery.cause == "straggler":
        timeline = two_ranks.ran(small) / "mystery_7" / "timeline.json"
        (my / "mystery_7" / "timeline.json").write_text(timeline.read_text())
    number = str(mystery.number)
    (my / f"mystery_{number}" / "answers.json").unlink(missing_ok=True)
    assert "comes before the fix" in workshop("mystery", number, "--check", my=my).stderr
    wrong = next(cause for cause in ("xla", "input") if cause != mystery.cause)
    ended = workshop("mystery", number, "--answer", wrong, my=my)
    assert ended.returncode == 1 and not ended.stderr
    assert ended.stdout.startswith(f"Not {wrong}.") and len(ended.stdout.splitlines()) == 2
    assert mystery.cause not in ended.stdout
    assert "1 answer(s), none right" in workshop("mystery", my=my).stdout
    ended = workshop("mystery", number, "--answer", mystery.cause, my=my)
    assert ended.returncode == 0 and not ended.stderr
    told = " ".join(ended.stdout.split())
    assert told.startswith("Right: ") and f"mystery {number} --check" in told
    assert re.search(r"(In the|The log says|Besides) .*\d", told), told
    assert f"{mystery.cause}: found with answer 2" in workshop("mystery", my=my).stdout


def test_an_answer_without_a_run_says_what_to_type(tmp_path: Path) -> None:
    workshop("mystery", "3", my=tmp_path)
    for cause in CAUSES:
        ended = workshop("mystery", "3", "--answer", cause.name, my=tmp_path)
        assert "You have no run here that tells" in ended.stdout
        assert ended.returncode == (cause.name != "clock")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("8", "no mystery 8. There are 1 to 7"),
        ("first", "no mystery first"),
        ("3 --answer slow", "slow is none of the causes: clock, copies"),
        ("3 --answer clock", "mystery_3/train_MNIST.py yet. Type: "),
        ("3 --check", "mystery_3/train_MNIST.py yet. Type: "),
        ("--check", "--check needs a number"),
        ("--answer clock", "--answer needs a number"),
        ("3 --check --xray", "--check or --xray: one at a time"),
        ("3 --timeline", "mystery_3/train_MNIST.py yet. Type: "),
        ("3 --check --repeats 0", "0 is no whole number"),
    ],
)
def test_bad_words_get_one_line(words: str, said: str, tmp_path: Path) -> None:
    ended = workshop("mystery", *words.split(), my=tmp_path)
    assert ended.returncode in (1, 2) and not ended.stdout
    assert len(ended.stderr.splitlines()) == 1 and said in ended.stderr
    assert not list(tmp_path.iterdir())


def test_files_that_are_none_get_no_traceback(tmp_path: Path) -> None:
    """Cut short, of another kind, or edited: then there is nothing to read."""
    workshop("mystery", "3", my=tmp_path)
    folder = tmp_path / "mystery_3"
    (folder / evidence.LOGS).mkdir()
    (folder / evidence.LOGS / "x.xplane.pb").write_bytes(b"\xff no profile")
    for name in (evidence.LOG, evidence.LPROF, evidence.XRAY, evidence.TIMELINE):
        (folder / name).write_bytes(b"\xff[1, 2")
    assert evidence.read(folder, "") == Facts()
    ended = workshop("mystery", "3", "--timeline", my=tmp_path)
    assert ended.returncode == 1 and len(ended.stderr.splitlines()) == 1
    (folder / "answers.json").write_text("[]")
    assert "3  started" in workshop("mystery", my=tmp_path).stdout


# --- the check ---


@pytest.mark.slow
def test_a_fix_is_checked(mnist: Path, tmp_path: Path) -> None:
    """For real, by the process that forks itself."""
    place = tmp_path / "mystery_1"
    place.mkdir()
    (place / "train_MNIST.py").write_text(made(Mystery(1, "")))
    (place / "answers.json").write_text('{"tries": ["python"], "found": true}')
    job = call("mystery 1 --check --quick", tmp_path)
    (tmp_path / "jobs.json").write_text(json.dumps([[job]]))
    env = {**stage_environment(), **trial.environment()}
    command = [sys.executable, "-m", "tests.forked", str(tmp_path / "jobs.json")]
    subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=600)
    told = " ".join(Path(job["out"]).read_text().split())
    assert Path(job["err"]).read_text() == "", told
    assert "The cause is gone In the line profile 0 %" in told
    assert told.endswith("Mystery 1 is right; without --quick it is timed.")
    assert Path(job["out"]).with_suffix(".status").read_text() == "0"


@pytest.mark.parametrize(
    ("speeds", "said"),
    [
        ((900, 500, 950), "Mystery 1 is fixed."),
        ((400, 380, 950), "Something in it still costs time: 04 is 2.38x it."),
        ((400, 500, 550), "It is slower than it was: 0.80x."),
    ],
)
def test_a_fix_is_timed(speeds, said, tmp_path: Path, mnist, monkeypatch) -> None:
    """Yours, as it was made, 04: test_exercises.py times real ones."""

    def timed(entries, *_):
        for entry, speed in zip(entries, speeds):
            entry.speeds, entry.claims, entry.accuracies = [speed], [speed], [0.5]

    healthy = Facts(lines={"train_loop": [evidence.Line("fetch_batch(batches)", 30, 1.0)]})
    monkeypatch.setattr(cure, "judge_training", lambda *_: False)
    monkeypatch.setattr(cure, "gather", lambda *_: healthy)
    monkeypatch.setattr(cure, "time_in_turns", timed)
    workshop("mystery", "1", my=tmp_path)
    workshop("mystery", "1", "--answer", "python", my=tmp_path)
    ended = workshop("mystery", "1", "--check", my=tmp_path)
    assert said in ended.stdout and ended.returncode == ("fixed" not in said), ended
    fixed = "found with answer 1, fixed: 1.80x the speed" in workshop("mystery", my=tmp_path).stdout
    assert fixed == ("fixed" in said)


@pytest.mark.parametrize("mystery", MYSTERIES[:-1], ids=lambda mystery: str(mystery.number))
def test_what_is_not_fixed_is_still_there(mystery, facts_of, my: Path, mnist, monkeypatch) -> None:
    facts = facts_of(mystery)
    monkeypatch.setattr(cure, "judge_training", lambda *_: False)
    monkeypatch.setattr(cure, "gather", lambda *_: facts)
    number = str(mystery.number)
    workshop("mystery", number, "--answer", mystery.cause, my=my)
    ended = workshop("mystery", number, "--check", "--quick", my=my)
    assert ended.returncode == 1 and "Not yet: It is still there. " in ended.stdout, ended


def test_the_check_uses_the_tool_that_shows_the_cause(monkeypatch, tmp_path: Path) -> None:
    """What it types for each; the tools themselves run above."""
    typed = []

    def follow(command, *_):
        typed.append(" ".join(command[1:]))
        yield cure.watched.Ended()

    monkeypatch.setattr(cure.watched, "follow", follow)
    for i, mystery in enumerate(MYSTERIES):
        script = tmp_path / "x.py"
        script.write_text(made(mystery))
        cure.gather(BY_NAME[mystery.cause].tool, script, tmp_path / str(i), 1)
    wanted = {"python": "-m kernprof -l", "input": "--logdir", "clock": "--logdir"}
    wanted |= {"retracing": "--logdir", "copies": "placement", "writing": "-m kernprof -l"}
    wanted |= {"straggler": "-np 2"}
    for mystery, words in zip(MYSTERIES, typed):
        assert wanted[mystery.cause] in words


# --- the page ---


def test_the_page_and_the_picture_name_every_cause() -> None:
    drawn = {cause for _, _, answers in picture.QUESTIONS for _, cause in answers}
    assert drawn == set(BY_NAME)
    assert picture.PICTURE.stat().st_size < 120_000
    page = (ROOT / "MYSTERIES.md").read_text()
    assert all(f"{i}. **" in page for i in range(1, len(picture.QUESTIONS) + 1))
