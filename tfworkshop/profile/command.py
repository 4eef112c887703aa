"""`./workshop profile -- python train.py`: run it, and say where its steps' time goes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from rich.text import Text

from tfworkshop import terminal
from tfworkshop.files import display_path, read_cached
from tfworkshop.ideal_gpu import build
from tfworkshop.problem import Problem, UsageProblem
from tfworkshop.processes import started
from tfworkshop.profile import ideal
from tfworkshop.profile.summary import NAME, Kind, Summary, Timed, rank
from tfworkshop.report import text
from tfworkshop.report.figures import ms, percent
from tfworkshop.report.profile import Profile
from tfworkshop.report.reader import load
from tfworkshop.stages import ROOT

RUNNER = ROOT / "tfworkshop" / "profile" / "runner.py"
PYTHON = re.compile(r"(.*/)?python[\d.]*")
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # options of Python that take a word
DEFAULT_FIRST = 20


@dataclass(frozen=True)
class Settings:
    """What the runner is told; runner.py reads it as JSON."""

    logdir: str
    window: tuple[int, int] | None = None  # None: steps 20 to 29, or later if something is traced
    stop: bool = False
    all_ranks: bool = False


def run(
    program: list[str],
    steps: list[int] | None,
    logdir: Path,
    stop: bool,
    ranks: str,
    ideal_gpu: bool,
) -> int:
    window = None
    if steps:
        first, last = steps
        if last < first:
            raise UsageProblem(f"--steps {first} {last}: the first step must not be after the last")
        window = first, last
    settings = Settings(str(logdir.absolute()), window, stop, ranks == "all")
    environment = users_environment()
    if ideal_gpu:
        python = ideal.choose_python(program[find_python(program)], environment)
        # What the device decides is true: assertions hold, and gradients are finite.
        environment = build.environment(python, {"IDEAL_GPU_BOOLS": "1", **environment})
        return profile_program(program, settings, environment, str(python))
    return profile_program(program, settings, environment)


def profile_program(
    program: list[str],
    settings: Settings,
    environment: dict[str, str],
    python: str | None = None,
) -> int:
    """Run a program in an environment, with another Python if one is given; print the verdict."""
    command = wrap(program, settings, environment, python)
    logdir = Path(settings.logdir)
    if rank() == 0:
        try:
            logdir.mkdir(parents=True, exist_ok=True)
            (logdir / NAME).unlink(missing_ok=True)  # of an earlier run
        except OSError as error:
            raise Problem(f"cannot write to {logdir} ({error.strerror}): name --logdir") from None
    with started(command, env=environment, stdin=None) as process, passing_on_signals(process):
        status = process.wait()
    if status < 0:
        status = 128 - status
    if rank() > 0:
        return status
    summary = read_cached(logdir / NAME, Summary) or Summary()
    kind = choose(summary)
    if kind is None:
        print(f"workshop: {why_nothing(summary, settings)}", file=sys.stderr)
        return status or 1
    show(summary, kind, load(Path(kind.folder))[0])
    return status


# --- starting it ---


def users_environment() -> dict[str, str]:
    """The environment as it was before ./workshop put its own Python first."""
    environment = dict(os.environ)
    first, _, rest = environment.get("PATH", "").partition(os.pathsep)
    if first == f"{sys.prefix}/bin" and (Path(sys.prefix) / "workshop.txt").exists():
        environment["PATH"] = rest
        environment.pop("VIRTUAL_ENV", None)
    folders = environment.pop("PYTHONPATH", "").split(os.pathsep)
    folders = [folder for folder in folders if folder and folder != str(ROOT)]
    if folders:
        environment["PYTHONPATH"] = os.pathsep.join(folders)
    return environment


def wrap(
    program: list[str], settings: Settings, environment: dict[str, str], python: str | None
) -> list[str]:
    """The program's command with our runner between Python and the script.

    Words before Python belong to a launcher, for instance `horovodrun -np 2`.
    """
    place = find_python(program)
    launcher, name, rest = program[:place], program[place], program[place + 1 :]
    if python is None and shutil.which(name, path=environment.get("PATH")):
        python = name
    options = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        count = 2 if rest[0] in WITH_VALUE else 1
        options += rest[:count]
        rest = rest[count:]
    if not rest or rest[0] in ("-c", "-"):
        raise UsageProblem("name a script or a module: -- python train.py, or -- python -m module")
    runner = [str(RUNNER), json.dumps(asdict(settings))]
    return [*launcher, python or sys.executable, *options, *runner, *rest]


def find_python(program: list[str]) -> int:
    """Which word of the program's command is Python."""
    place = next((i for i, word in enumerate(program) if PYTHON.fullmatch(word)), None)
    if place is None:
        raise UsageProblem("the program must be started by python: -- python train.py")
    return place


@contextlib.contextmanager
def passing_on_signals(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ctrl+C is the program's business, and so is how long it takes to end after it."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


# --- saying what it did ---


def choose(summary: Summary) -> Kind | None:
    """Of the kinds of steps that were recorded, the one that took most time."""
    recorded = [kind for kind in summary.kinds if kind.recorded and Path(kind.folder).is_dir()]
    return max(recorded, key=lambda kind: kind.all.seconds, default=None)


def why_nothing(summary: Summary, settings: Settings) -> str:
    if not summary.tensorflow:
        return "nothing was recorded: the program did not import TensorFlow"
    if not summary.kinds:
        return (
            "no training step was found: neither model.fit, nor a tf.function with gradients, nor "
            "an optimizer. Set markers yourself: docs/TAKE_HOME.md"
        )
    kind = max(summary.kinds, key=lambda kind: kind.count)
    if summary.occupied:
        return f"nothing was recorded: the program's own profiler ran during its {kind.name}"
    first = settings.window[0] if settings.window else DEFAULT_FIRST
    line = f"nothing was recorded: {kind.count} {kind.name}, and recording begins after {first}"
    if kind.count >= 3:
        line += f". Type: --steps {kind.count // 2} {kind.count - 2}"
    return line


def show(summary: Summary, kind: Kind, profile: Profile) -> None:
    """On stderr: the standard output is the program's own."""
    console = terminal.console(stderr=True)
    console.width = min(console.width, 100)
    lines = [Text(), *map(Text, describe(summary, kind, profile)), Text(), *text.head(profile)]
    console.print(*lines, Text(), sep="\n")
    folder = Path(kind.folder)
    console.print(Text(f"Profile: {display_path(folder)}", overflow="fold"))
    console.print(Text(f"All of it: ./workshop report {display_path(folder)} --html report.html"))


def describe(summary: Summary, kind: Kind, profile: Profile) -> list[str]:
    """How the steps were found, how long they took, and what else there was."""
    size = f", {kind.samples:,} samples each" if kind.samples else ""
    lines = [
        f"Steps: {kind.count:,} {kind.name}{size}; {kind.recorded} recorded, from {kind.first} on.",
        f"Step time: {step_times(kind, profile)}.",
    ]
    unrecorded = mean_ms(kind.unrecorded)
    if kind.work:
        lines += ideal.describe(kind, profile)
    elif kind.samples and unrecorded:
        lines.append(f"Speed: {kind.samples / unrecorded * 1e3:,.0f} samples a second, unrecorded.")
    if not kind.has_settled:
        lines.append("A function was still being traced shortly before the recording.")
    if kind.irregular:
        lines.append(
            f"Left out: steps with much more in them, an evaluation say: {kind.irregular}."
        )
    for other in summary.kinds:
        if other is not kind:
            lines.append(f"Also: {other.count:,} {other.name}{relation(other, kind)}.")
    return lines


def mean_ms(timed: Timed) -> float | None:
    return 1e3 * timed.seconds / timed.steps if timed.steps else None


def step_times(kind: Kind, profile: Profile) -> str:
    parts = []
    for timed, when in ((kind.before, "before"), (kind.after, "after")):
        if timed.steps:
            parts.append(f"{ms(mean_ms(timed))} ms {when} (mean of {timed.steps:,})")
    recorded, unrecorded = profile.steps.average_ms, mean_ms(kind.unrecorded)
    if recorded:
        part = f"{ms(recorded)} ms recorded"
        if unrecorded:
            more = recorded / unrecorded - 1
            part += f", {percent(abs(more))} {'more' if more >= 0 else 'less'}"
        parts.append(part)
    return ", ".join(parts) or "not known"


def relation(other: Kind, chosen: Kind) -> str:
    if other.inside == chosen.name:
        return ", inside these steps"
    if other.recorded:
        share = percent(other.all.seconds / chosen.all.seconds)
        return f", {share} as long in all, in {display_path(Path(other.folder))}"
    return ", not recorded"
