"""Mysteries: each cause shows in the tool that docs/MYSTERIES.md names, and in no other's evidence.

All scripts run in one process, and once in two ranks: tests/mystery_runs.py.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.ideal import ideal_env, ideal_python
from tfworkshop import __main__ as workshop
from tfworkshop import processes
from tfworkshop.exercises.attempt import Attempt
from tfworkshop.exercises.records import CORRECT, read_check
from tfworkshop.exercises.trial import NotYet, script_environment
from tfworkshop.mysteries import cure, evidence, scripts
from tfworkshop.mysteries.causes import CAUSE_BY_NAME, CAUSES, Finding
from tfworkshop.mysteries.command import Answers, read_answers
from tfworkshop.mysteries.scripts import MYSTERIES, Mystery, build_healthy, build_script
from tfworkshop.report import command as report
from tfworkshop.report import horovod_timeline
from tfworkshop.stages import ROOT

each_mystery = pytest.mark.parametrize("mystery", MYSTERIES, ids=lambda mystery: mystery.cause)


def run_all(root: Path, scripts: dict[str, str], data: Path, launcher: list[str]) -> Path:
    for name, text in scripts.items():
        (root / name).mkdir()
        (root / name / "train_MNIST.py").write_text(text)
    module = [sys.executable, "-m", "tests.mystery_runs", str(root), str(data)]
    environment = script_environment()
    if launcher:
        # Without its cache Horovod records at each exchange who was late.
        environment |= {"HOROVOD_TIMELINE": "DYNAMIC", "HOROVOD_CACHE_CAPACITY": "0"}
        environment |= {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a core each
    finished = processes.run([*launcher, *module], timeout=600, env=environment, cwd=ROOT)
    assert finished.status == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return root


@pytest.fixture(scope="module")
def one_rank(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An attendee's folder with all mysteries, and a healthy script as mystery_0."""
    scripts = {f"mystery_{mystery.number}": build_script(mystery) for mystery in MYSTERIES}
    scripts["mystery_0"] = build_healthy(0)
    root = run_all(tmp_path_factory.mktemp("one_rank"), scripts, small, launcher=[])
    run_on_ideal_gpu(root, small)
    return root


def run_on_ideal_gpu(root: Path, data: Path) -> None:
    module = [str(ideal_python()), "-m", "tests.mystery_runs", str(root), str(data)]
    environment = ideal_env(IDEAL_GPU_BOOLS="1", PYTHONPATH=str(ROOT))
    finished = processes.run(module, timeout=300, env=environment, cwd=ROOT)
    assert finished.status == 0, finished.stdout[-3000:] + finished.stderr[-3000:]


@pytest.fixture(scope="module")
def two_ranks(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("horovod", reason="needs Horovod: ./workshop setup --horovod")
    scripts = {
        "mystery_7": build_script(MYSTERIES[6]),
        "healthy_1": build_healthy(0),
        "healthy_2": build_healthy(0),
        "stranger": (ROOT / "tests/strangers/ranks.py").read_text(),
    }
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    launcher = [horovodrun, "--gloo", "-np", "2"]
    return run_all(tmp_path_factory.mktemp("two_ranks"), scripts, small, launcher)


# --- the evidence ---


@pytest.mark.slow
@pytest.mark.parametrize("mystery", [Mystery(0, ""), *MYSTERIES], ids=lambda m: m.cause or "none")
def test_a_cause_shows_in_its_tool_and_nowhere_else(mystery: Mystery, one_rank: Path) -> None:
    folder = one_rank / f"mystery_{mystery.number}"
    seen = {tool: evidence.read(tool, folder) for tool in ("log", "profile", "lines", "ideal GPU")}
    findings = {cause.name: cause.judge(seen[cause.tool]) for cause in CAUSES if cause.tool in seen}
    confirmed = [name for name, finding in findings.items() if finding.confirmed]
    assert confirmed == [name for name in findings if name == mystery.cause], findings


@pytest.mark.slow
def test_a_rank_that_is_late(two_ranks: Path) -> None:
    def judge(cause: str, folder: str) -> Finding:
        return CAUSE_BY_NAME[cause].judge(evidence.read_timeline(two_ranks / folder))

    assert judge("straggler", "mystery_7").confirmed
    assert not judge("exchange", "mystery_7").confirmed
    for cause in ("straggler", "exchange"):  # a busy machine may disturb one of the healthy runs
        findings = [judge(cause, "healthy_1"), judge(cause, "healthy_2")]
        assert not all(finding.confirmed for finding in findings), findings


@pytest.mark.slow
def test_a_horovod_job_of_a_stranger(two_ranks: Path) -> None:
    """What docs/TAKE_HOME.md says to paste: rank 0 alone leaves a profile."""
    folder = two_ranks / "stranger"
    assert len(list((folder / "logs").rglob("*.xplane.pb"))) == 1
    steps = report.load(folder / "logs")[0].steps.per_step
    assert [int(step.name.split()[-1]) for step in steps] == list(range(20, 30))
    assert horovod_timeline.read(folder / "timeline.json").steps == 40


# --- the scripts ---


@each_mystery
def test_nothing_in_a_script_gives_it_away(mystery: Mystery) -> None:
    """Compared with the healthy script it has no new comment, and no new name that tells."""
    text, healthy = build_script(mystery), build_healthy(mystery.number)
    assert text != healthy
    assert set(re.findall("#.*", text)) <= set(re.findall("#.*", healthy))
    new_names = set(re.findall(r"\w+", text)) - set(re.findall(r"\w+", healthy))
    telling = re.compile(f"{'|'.join(CAUSE_BY_NAME)}|slow|wait|serial|trac|late$")
    assert not [name for name in new_names if telling.search(name)]


@pytest.mark.parametrize("line", ["no such line", "import"])
def test_a_patch_that_does_not_fit_once_is_an_error(line: str, tmp_path: Path) -> None:
    patch = tmp_path / "patch.txt"
    patch.write_text(f"@@ before\n{line}\n@@ after\n\n")
    with pytest.raises(ValueError):
        scripts.apply_patches(patch, "import a\nimport b\n")


def test_the_page_names_every_cause() -> None:
    page = (ROOT / "docs" / "MYSTERIES.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    assert {row[-2].strip() for row in rows[1:]} == set(CAUSE_BY_NAME)


# --- the command ---


@pytest.fixture
def my(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKSHOP_MY", str(tmp_path))
    return tmp_path


def test_making_one(my: Path) -> None:
    for mystery in MYSTERIES:
        assert workshop.main(["mystery", str(mystery.number)]) == 0
        assert mystery.script.read_text() == build_script(mystery)
    script = MYSTERIES[1].script
    script.write_text("mine")
    assert workshop.main(["mystery", "02"]) == 0
    assert script.read_text() == "mine"
    assert workshop.main(["mystery", "2", "--fresh"]) == 0
    assert script.read_text() == build_script(MYSTERIES[1])
    assert script.with_name("train_MNIST.1.py").read_text() == "mine"


@pytest.mark.slow
@each_mystery
def test_answers(mystery: Mystery, one_rank: Path, two_ranks: Path, my: Path, capsys) -> None:
    """Right or wrong, with the figures of the attendee's own run; nothing else is given away."""
    folder = mystery.script.parent
    shutil.copytree(one_rank / folder.name, folder)
    shutil.copy(two_ranks / "mystery_7" / "timeline.json", folder)
    command = ["mystery", str(mystery.number)]
    assert workshop.main([*command, "--check"]) == 1  # the cause comes first
    assert workshop.main([*command, "--answer", "xla"]) == 1
    assert mystery.cause not in capsys.readouterr().out
    assert workshop.main([*command, "--answer", mystery.cause]) == 0
    cause = CAUSE_BY_NAME[mystery.cause]
    finding = cause.judge(evidence.read(cause.tool, folder))
    assert finding.figures in " ".join(capsys.readouterr().out.split())
    assert read_answers(mystery) == Answers(["xla", mystery.cause], solved=True)


def test_an_answer_without_a_run(my: Path) -> None:
    workshop.main(["mystery", "3"])
    for cause in CAUSES:
        assert evidence.read(cause.tool, my / "mystery_3") is None
        status = workshop.main(["mystery", "3", "--answer", cause.name])
        assert status == (0 if cause.name == "clock" else 1)
    assert workshop.main(["mystery", "3", "--timeline"]) == 1


NOT_MADE_YET = [("3 --answer clock", 1), ("3 --check", 1), ("3 --timeline", 1)]
MISTYPED = [("8", 1), ("--check", 2), ("3 --answer slow", 2), ("3 --check --timeline", 2)]


@pytest.mark.parametrize(("words", "status"), [*NOT_MADE_YET, *MISTYPED])
def test_mistakes_get_one_line(words: str, status: int, my: Path, capsys) -> None:
    assert workshop.main(["mystery", *words.split()]) == status
    printed = capsys.readouterr()
    assert not printed.out and len(printed.err.splitlines()) == 1
    assert not list(my.iterdir())


# --- the check ---


@pytest.mark.slow
def test_a_fix_is_checked(mnist: Path, my: Path) -> None:
    workshop.main(["mystery", "1"])
    workshop.main(["mystery", "1", "--answer", "python"])
    MYSTERIES[0].script.write_text(build_healthy(1))
    assert workshop.main(["mystery", "1", "--check", "--quick"]) == 0
    assert read_check(MYSTERIES[0].script).status == CORRECT


@pytest.mark.slow
def test_a_cause_that_is_still_there(mnist: Path, my: Path) -> None:
    mystery = MYSTERIES[4]
    workshop.main(["mystery", "5"])
    attempt = Attempt(mystery.script, quick=True, repeats=1, limit=300)
    attempt.folder = my
    with pytest.raises(NotYet) as problem:
        cure.judge_cause(CAUSE_BY_NAME[mystery.cause], attempt)
    assert problem.value.code == "cause-remains"
