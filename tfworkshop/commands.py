"""The command line as one table: name, help, what it needs, function, options.

Standard library only, and nothing that Python 3.7 cannot read: ./workshop runs this file with any
Python that it finds, before anything is installed. A module is imported when its command is called.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

# What a command needs, and the exit status that tells ./workshop so: 10 more with --ideal-gpu,
# which has an environment of its own.
NOTHING = "nothing"
RUN = "run"  # requirements.txt
TEST = "test"  # and requirements-test.txt
HOROVOD = "horovod"  # and Horovod, which requirements-test.txt can build
STATUS = {NOTHING: 10, RUN: 11, TEST: 12, HOROVOD: 12}

Option = tuple  # the names and the settings that argparse's add_argument takes


class Command(NamedTuple):
    name: str
    help: str
    function: str  # "module:function"; it gets the options by name
    options: tuple[Option, ...]
    needs: str


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, not the whole usage."""
        self.exit(2, f"workshop: {message}. Type: {self.prog} --help\n")


def at_least_one(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return int(text)


def option(*names: str, **settings: Any) -> Option:
    return names, settings


def count(name: str, default: object, help: str, **settings: Any) -> Option:
    return option(name, type=at_least_one, default=default, help=help, **settings)


def switch(name: str, help: str, **settings: Any) -> Option:
    return option(name, action="store_true", help=help, **settings)


def file(name: str, help: str, **settings: Any) -> Option:
    return option(name, type=Path, help=help, **{"metavar": "FILE", **settings})


def command(name: str, help: str, function: str, *options: Option, needs: str = RUN) -> Command:
    return Command(name, help, function, options, needs)


IDEAL_GPU = switch("--ideal-gpu", "on the ideal GPU: kernels take no time (docs/IDEAL_GPU.md)")
BATCH_SIZE = count("--batch-size", 64, "default 64")
STAGE = {"metavar": "NN", "help": "01 to 06"}

COMMANDS = (
    command(
        "run",
        "train every stage in turn and show the ladder: a table and a chart",
        "ladder.run:run",
        option("--stages", nargs="+", default=[], metavar="NN", help="for instance 00 02"),
        count("--ranks", 1, "processes (Horovod)"),
        count("--repeats", 1, "run the whole ladder this often; default 1"),
        count("--steps", 60, "of each stage; default 60"),
        BATCH_SIZE,
        IDEAL_GPU,
    ),
    command(
        "exercise",
        "make a stage's change yourself: its task, and the script before it",
        "exercises.task:start",
        option("stage", **STAGE),
        switch("--fresh", "move your file aside and start again"),
    ),
    command(
        "check",
        "is your exercise correct, and is it faster? Without NN: your progress",
        "exercises.check:run",
        option("stage", nargs="?", **STAGE),
        switch("--quick", "do not time it"),
        count("--repeats", 3, "how often to time it; default 3"),
        switch("--hint", "only show the next hint"),
        count("--limit", 300, "seconds that a run of your script may take; default 300"),
    ),
    command(
        "mystery",
        "trainings with a hidden cause each: find it, fix it. Alone: the list",
        "mysteries.command:run",
        option("number", nargs="?", metavar="N", help="1 to 7"),
        option("--answer", metavar="CAUSE", help="right or wrong, and what your own runs show"),
        switch("--check", "your fix: is it right, is the cause gone, how fast is it?"),
        switch("--timeline", "who waited for whom, from timeline.json"),
        switch("--fresh", "move your file aside, start anew"),
        switch("--quick", "with --check: do not time it"),
        count("--repeats", 3, "of the timing; default 3"),
        count("--limit", 300, "seconds for a process of your script; default 300"),
    ),
    command(
        "bench",
        "compare 06 with Keras's model.fit on the same CNN, alternating",
        "ladder.bench:run",
        count("--batch-size", [64], "one or more; default 64", nargs="+", metavar="N"),
        count("--repeats", 3, "alternating; default 3"),
        count("--steps", None, "default: 60 to 600, depending on the batch size"),
        IDEAL_GPU,
    ),
    command(
        "results",
        "show the last run; --keep and --write put it into the READMEs",
        "ladder.results:run",
        option(
            "--keep",
            nargs="?",
            const="",
            metavar="FOLDER",
            help="copy the last runs, or those of FOLDER, to docs/measured/",
        ),
        switch("--write", "put docs/measured/ into the READMEs"),
    ),
    command(
        "scale",
        "train one stage on 1, 2, ... ranks, the same batch on each, and show how it scales",
        "ladder.scale:run",
        option("--stage", default="06", metavar="NN", help="default 06"),
        count("--ranks", [1, 2], "default 1 2", nargs="+"),
        count("--repeats", 3, "alternating; default 3"),
        count("--steps", 100, "default 100"),
        BATCH_SIZE,
        IDEAL_GPU,
        needs=HOROVOD,
    ),
    command(
        "report",
        "show where a profiled run spent its time; --html, --json, --trace write files",
        "report.command:run",
        file("logdir", "of a profiled run, or a profile, or Horovod's timeline", metavar=None),
        file("other", "a second one to compare with", nargs="?", metavar=None),
        file("--html", "write one page that needs no network"),
        file("--json", "write all figures, for your own scripts; - is the standard output"),
        file("--trace", "write a trace for Perfetto and chrome://tracing", metavar="FILE.json.gz"),
        switch("--ranks", "all runs below the folder are the ranks of one"),
    ),
    command(
        "profile",
        "record some steps of any TensorFlow program, unedited: profile -- python train.py",
        "profile.command:run",
        count(
            "--steps",
            None,
            "record these; default: 20 to 29, once nothing is traced any more",
            nargs=2,
            metavar=("FIRST", "LAST"),
        ),
        file("--logdir", "where the profile goes; default logs", default="logs", metavar="FOLDER"),
        switch("--stop", "end the program after the recording"),
        option(
            "--ranks",
            choices=("0", "all"),
            default="0",
            help="which processes of a job record; default: the first",
        ),
        IDEAL_GPU,
    ),
    command(
        "test",
        "run the whole test suite, Horovod included, or what pytest's options and files say",
        "testing:run",
        switch("--quick", "only the part that takes under 2 minutes"),
        needs=HOROVOD,
    ),
    command(
        "data",
        "put verified MNIST at data/mnist.npz",
        "data:run",
        switch("--synthetic", "generate a stand-in instead: needs no network"),
        switch("--force", "replace even a good file"),
        file("--output", "write to FILE instead"),
    ),
    command(
        "setup",
        "only create the Python environment; --test and --horovod add to it",
        "environment.venv:run",
        switch("--test", "also what the tests need"),
        switch("--horovod", "also Horovod; compiling it takes minutes"),
        switch("--ideal-gpu", "the environment of the ideal GPU: TensorFlow's build for GPUs"),
    ),
    command(
        "doctor",
        "check this machine and say how to fix what is wrong; installs nothing",
        "doctor.command:run",
        switch("--json", "the findings as JSON", dest="as_json"),
        IDEAL_GPU,
        needs=NOTHING,
    ),
)
NAMES = tuple(entry.name for entry in COMMANDS)


def parse(argv: list[str]) -> tuple[Command, dict[str, Any]]:
    """The command and its options by name; exits for --help (status 0) and a mistake (2)."""
    name = argv[0] if argv else "help"
    if name in ("help", "-h", "--help"):
        print("usage: ./workshop COMMAND [options]\n")
        for entry in COMMANDS:
            print(f"  {entry.name:<10}{entry.help}")
        print("\n./workshop COMMAND --help says more about one of them.")
        sys.exit(0)
    if name not in NAMES:
        print(f"workshop: no command '{name}'. Type one of: {', '.join(NAMES)}.", file=sys.stderr)
        sys.exit(2)
    chosen = COMMANDS[NAMES.index(name)]
    parser = Parser(prog=f"./workshop {name}", description=chosen.help)
    for names, settings in chosen.options:
        parser.add_argument(*names, **settings)
    if name == "test":  # the options that it does not know are pytest's
        known, rest = parser.parse_known_args(argv[1:])
        return chosen, {**vars(known), "rest": rest}
    if name == "profile":  # after -- comes the user's program
        place = argv.index("--") if "--" in argv else len(argv)
        options = parser.parse_args(argv[1:place])
        if not argv[place + 1 :]:
            parser.error("put the program after --: profile -- python train.py")
        return chosen, {**vars(options), "program": argv[place + 1 :]}
    return chosen, vars(parser.parse_args(argv[1:]))


def needs_of(chosen: Command, options: dict[str, Any]) -> str:
    """What a command needs with these options."""
    if chosen.name == "test" and os.environ.get("WORKSHOP_HOROVOD") == "0":
        return TEST
    if chosen.name == "run" and options["ranks"] > 1:
        return HOROVOD
    if chosen.name == "setup" and options["horovod"]:
        return HOROVOD
    if chosen.name == "setup" and options["test"]:
        return TEST
    return chosen.needs


def call(argv: list[str]) -> int:
    """Run a command, and return its exit status."""
    chosen, options = parse(argv)
    if needs_of(chosen, options) == HOROVOD:
        importlib.import_module("tfworkshop.environment.horovod_build").ensure_horovod()
    if options.get("ideal_gpu") and chosen.name != "profile":  # its program may have another Python
        importlib.import_module("tfworkshop.ideal_gpu.build").restart_on_it(argv)
    if chosen.name not in ("setup", "profile"):
        options.pop("ideal_gpu", None)
    module, function = chosen.function.split(":")
    run = getattr(importlib.import_module(f"tfworkshop.{module}"), function)
    status: int = run(**options)
    return status


if __name__ == "__main__":
    asked, given = parse(sys.argv[1:])
    sys.exit(STATUS[needs_of(asked, given)] + (10 if given.get("ideal_gpu") else 0))
