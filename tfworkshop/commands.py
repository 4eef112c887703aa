"""The command line as one table: name, help, options, function.

The launcher reads it first, so any Python 3 can: old syntax; functions are named, not imported.
"""

# ruff: noqa: UP032

import argparse
import importlib
import re
import sys
from pathlib import Path


class Parser(argparse.ArgumentParser):
    def exit(self, status=0, message=None):
        if sys.stdout:  # `>&-` leaves none
            sys.stdout.flush()  # here, an error is one line
        super().exit(status, message)

    def error(self, message):
        """One line, not the whole usage."""
        self.exit(2, "workshop: {}. Type: {} --help\n".format(message, self.prog))


def at_least_one(text):
    if not re.match("[0-9]{1,10}$", text) or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError("{} is no whole number from 1 on".format(text[:40]))
    return int(text)


def a_path(text):
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)


def option(*names, **settings):
    """An argument as argparse takes it."""
    return names, settings


def count(name, default, what, **more):
    return option(name, type=at_least_one, default=default, help=what, **more)


def switch(name, what, **more):
    return option(name, action="store_true", help=what, **more)


def file(name, what, **more):
    return option(name, type=a_path, help=what, **{"metavar": "FILE", **more})


def command(name, what, function, *options):
    """A row of the table; the function gets the options by name."""
    return name, what, function, options


STEPS = count("--steps", 100, "default 100")
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
        option("--answer", metavar="CAUSE", help="right or wrong, and what your runs say to it"),
        switch("--check", "your fix: is it right, is the cause gone, how fast is it?"),
        switch("--xray", "what a GPU would see of its step"),
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
        STEPS,
        BATCH_SIZE,
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
        "xray",
        "predict what a GPU would see of a stage's step, without a GPU: kernels, copies, no times",
        "xray.command:run",
        option("what", nargs="?", default="", metavar="NN", help="a stage, or FILE.py:FUNCTION"),
        file("--json", "write all figures, for your own scripts", dest="file"),
    ),
    command(
        "test",
        "run the whole test suite, Horovod included; --quick: the part under 3 minutes",
        "testing:run",
        switch("--quick", "only the part that takes under 3 minutes"),
        option("rest", nargs="*", metavar="...", help="pytest's options, or files of tests/"),
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
        "environment.start:start",  # it ends once the environment exists
        switch("--test", "also what the tests need"),
        switch("--horovod", "also Horovod; compiling it takes minutes"),
    ),
    command(
        "doctor",
        "check this machine and say how to fix what is wrong; installs nothing",
        "doctor.command:run",
        switch("--json", "the findings as JSON", dest="as_json"),
    ),
)
NAMES = tuple(command[0] for command in COMMANDS)


def usage():
    """The text of `./workshop --help`."""
    lines = ["usage: ./workshop COMMAND [options]", ""]
    lines += ["  " + name.ljust(10) + what for name, what, _, _ in COMMANDS]
    lines += ["", "./workshop COMMAND --help says more about one of them."]
    return "\n".join(lines)


def parse(argv):
    """The function of a command, by name, and its arguments by name."""
    _, what, function, options = COMMANDS[NAMES.index(argv[0])]
    parser = Parser(prog="./workshop " + argv[0], description=what)
    for names, settings in options:
        parser.add_argument(*names, **settings)
    if argv[0] == "test":  # options that it does not know are pytest's
        known, rest = parser.parse_known_args(argv[1:])
        known.rest += rest
        return function, vars(known)
    return function, vars(parser.parse_args(argv[1:]))


def call(argv):
    """Run a command: its module is imported now, so that help is instant."""
    function, arguments = parse(argv)
    module, name = function.split(":")
    return getattr(importlib.import_module("tfworkshop." + module), name)(**arguments)
