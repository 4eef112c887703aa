"""The command line as one table: name, help, options, function.

The launcher reads it first, so any Python 3 can: old syntax; functions are named, not imported.
"""

# ruff: noqa: UP032

import argparse
import importlib
from pathlib import Path


def at_least_one(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError("{} is less than 1".format(text))
    return int(text)


def option(*names, **settings):
    """An argument as argparse takes it."""
    return names, settings


def count(name, default, what):
    return option(name, type=at_least_one, default=default, help=what)


def switch(name, what):
    return option(name, action="store_true", help=what)


def file(name, what, metavar="FILE"):
    return option(name, type=Path, metavar=metavar, help=what)


STEPS = count("--steps", 100, "default 100")
BATCH_SIZE = count("--batch-size", 64, "default 64")

COMMANDS = (
    (
        "run",
        "train every stage in turn and show the ladder: a table and a chart",
        (
            option("--stages", nargs="+", default=[], metavar="NN", help="for instance 00 02"),
            count("--ranks", 1, "processes (Horovod)"),
            count("--repeats", 1, "of the whole; default 1"),
            STEPS,
            BATCH_SIZE,
        ),
        "ladder.run:run",
    ),
    (
        "exercise",
        "make a stage's change yourself: its task, and the script before it",
        (
            option("stage", metavar="NN", help="01 to 06"),
            switch("--fresh", "move your file aside, start anew"),
        ),
        "exercises.task:start",
    ),
    (
        "check",
        "is your exercise right, and is it faster? Alone: the score card",
        (
            option("stage", nargs="?", metavar="NN", help="01 to 06"),
            switch("--quick", "do not time it"),
            count("--repeats", 3, "of the timing; default 3"),
            switch("--hint", "show the next hint, check nothing"),
            count("--limit", 300, "seconds for a process of your script; default 300"),
        ),
        "exercises.check:run",
    ),
    (
        "bench",
        "06 against Keras's model.fit, on the same CNN, in turns",
        (
            option(
                "--batch-size",
                type=at_least_one,
                nargs="+",
                metavar="N",
                default=[64],
                help="one or more; default 64",
            ),
            count("--repeats", 3, "in turns; default 3"),
            count("--steps", None, "default: by the batch size, 60 to 600"),
        ),
        "ladder.bench:run",
    ),
    (
        "results",
        "show the last run; --keep and --write put it into the READMEs",
        (
            switch("--keep", "copy the last runs to measured/"),
            switch("--write", "put measured/ into the READMEs"),
        ),
        "ladder.results:run",
    ),
    (
        "scale",
        "train one stage on 1, 2, ... ranks, the same batch on each, and show how it scales",
        (
            option("--stage", default="06", metavar="NN", help="default 06"),
            option("--ranks", type=at_least_one, nargs="+", default=[1, 2], help="default 1 2"),
            count("--repeats", 3, "alternating; default 3"),
            STEPS,
            BATCH_SIZE,
        ),
        "ladder.scale:run",
    ),
    (
        "report",
        "show where a profiled run spent its time; --html, --json, --trace write files",
        (
            file("logdir", "of a profiled run, or a profile, or Horovod's timeline (.json)", None),
            option("other", type=Path, nargs="?", help="a second one, to compare with"),
            file("--html", "one page that needs no network"),
            file("--json", "all figures, for tools; - is the standard output"),
            file("--trace", "for Perfetto and chrome://tracing", "FILE.json.gz"),
            switch("--ranks", "take all runs below the folder for the ranks of one"),
        ),
        "report.command:run",
    ),
    (
        "xray",
        "what a GPU would see of each stage's step, found without one: kernels, copies, no times",
        (
            option(
                "what",
                nargs="?",
                default="",
                metavar="NN",
                help="of a stage, or your own tf.function: FILE.py:FUNCTION; default all stages",
            ),
            option("--json", dest="file", type=Path, metavar="FILE", help="all figures, for tools"),
        ),
        "xray.command:run",
    ),
    (
        "test",
        "run the whole test suite, Horovod included; --quick: the part under 3 minutes",
        (
            switch("--quick", "only what takes under 3 minutes"),
            option("rest", nargs="*", metavar="...", help="pytest's options, or files of tests/"),
        ),
        "testing:run",
    ),
    (
        "data",
        "put verified MNIST at data/mnist.npz",
        (
            switch("--synthetic", "draw a stand-in instead: no network needed"),
            switch("--force", "replace even a good file"),
            file("--output", "write to FILE instead"),
        ),
        "data:run",
    ),
    (
        "setup",
        "make the Python environment only; --test and --horovod add to it",
        (
            switch("--test", "what the tests need too"),
            switch("--horovod", "Horovod too; it is compiled, which takes minutes"),
        ),
        "environment.start:start",  # which ends once it is made
    ),
    (
        "doctor",
        "check this machine, and say how to fix what is wrong; installs nothing",
        (option("--json", dest="as_json", action="store_true", help="the findings as JSON"),),
        "doctor.command:run",
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
    _, what, options, function = COMMANDS[NAMES.index(argv[0])]
    parser = argparse.ArgumentParser(prog="./workshop " + argv[0], description=what)
    for names, settings in options:
        parser.add_argument(*names, **settings)
    if argv[0] == "test":  # what it does not know is pytest's
        known, rest = parser.parse_known_args(argv[1:])
        known.rest += rest
        return function, vars(known)
    return function, vars(parser.parse_args(argv[1:]))


def call(argv):
    """Run a command: its module is imported now, so that help is instant."""
    function, arguments = parse(argv)
    module, name = function.split(":")
    return getattr(importlib.import_module("tools." + module), name)(**arguments)
