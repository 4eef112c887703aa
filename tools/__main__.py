"""What `./workshop` runs once there is an environment. Imports stay inside: help is instant."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from tools.stages import ROOT, UnknownStage, choose


def at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def add_size_options(parser: argparse.ArgumentParser, steps: int) -> None:
    parser.add_argument("--steps", type=at_least_one, default=steps, help=f"default {steps}")
    parser.add_argument("--batch-size", type=at_least_one, default=64, help="default 64")


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./workshop run", description="Train the ladder's stages and compare them."
    )
    parser.add_argument("--stages", nargs="+", default=[], metavar="NN", help="for instance 00 02")
    parser.add_argument("--ranks", type=at_least_one, default=1, help="processes (Horovod)")
    parser.add_argument("--repeats", type=at_least_one, default=1, help="of the whole; default 1")
    add_size_options(parser, steps=100)
    args = parser.parse_args(argv)
    stages = choose([name for text in args.stages for name in text.split(",") if name])
    from tools import ladder

    return ladder.run(stages, args.steps, args.batch_size, args.ranks, args.repeats)


def scale(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./workshop scale", description="Weak scaling: the same batch on every rank."
    )
    parser.add_argument("--stage", default="06", metavar="NN", help="default 06")
    parser.add_argument("--ranks", type=at_least_one, nargs="+", default=[1, 2], help="default 1 2")
    parser.add_argument("--repeats", type=at_least_one, default=3, help="alternating; default 3")
    add_size_options(parser, steps=100)
    args = parser.parse_args(argv)
    stage = choose([args.stage])[-1]  # of 06's two, the last
    from tools import scale as module

    return module.run(stage, args.ranks, args.repeats, args.steps, args.batch_size)


def bench(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./workshop bench", description="Stage 06 against model.fit, on the same CNN."
    )
    sizes = {"type": at_least_one, "nargs": "+", "metavar": "N", "default": [64]}
    parser.add_argument("--batch-size", **sizes, help="one or more; default 64")
    parser.add_argument("--repeats", type=at_least_one, default=3, help="in turns; default 3")
    parser.add_argument("--steps", type=at_least_one, help="default: by the batch size, 60 to 600")
    args = parser.parse_args(argv)
    from tools import bench as module

    return module.run(args.batch_size, args.repeats, args.steps)


def results(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./workshop results", description="The last run's table; and the READMEs' figures."
    )
    parser.add_argument("--keep", action="store_true", help="copy the last runs to measured/")
    parser.add_argument("--write", action="store_true", help="put measured/ into the READMEs")
    args = parser.parse_args(argv)
    from tools import results as module

    return module.run(args.keep, args.write)


def report(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./workshop report", description="Show where a profiled run spent its time."
    )
    parser.add_argument("logdir", type=Path, help="the --logdir of a profiled run, or a profile")
    parser.add_argument("other", type=Path, nargs="?", help="a second one, to compare with")
    parser.add_argument("--html", type=Path, metavar="FILE", help="one page that needs no network")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures, for tools")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE.json.gz", help="for Perfetto and chrome://tracing"
    )
    args = parser.parse_args(argv)
    from tools import report as module

    paths = [path for path in (args.logdir, args.other) if path]
    files = {"html": args.html, "json": args.json, "trace": args.trace}
    return module.run(paths, {kind: file for kind, file in files.items() if file})


def xray(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./workshop xray",
        description="What a GPU would see of a step, without a GPU: kernels, copies. No times.",
    )
    names = "of a stage, or your own tf.function: FILE.py:FUNCTION; default all stages"
    parser.add_argument("what", nargs="?", default="", metavar="NN", help=names)
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures, for tools")
    args = parser.parse_args(argv)
    from tools.xray import command

    return command.run(args.what, args.json)


def test(argv: list[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print("usage: ./workshop test [pytest options, or a file of tests/]")
        return 0
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *argv])


def data(argv: list[str]) -> int:
    from tools import data as module

    return module.main(argv)


def doctor(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./workshop doctor",
        description="Check this machine, and say how to fix what is wrong. Installs nothing.",
    )
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    args = parser.parse_args(argv)
    from tools import doctor as module

    return module.run(args.json)


def exercise(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./workshop exercise",
        description="Make a stage's change yourself: its task, and the script before it to change.",
    )
    parser.add_argument("stage", metavar="NN", help="01 to 06")
    parser.add_argument("--fresh", action="store_true", help="move your file aside, start anew")
    args = parser.parse_args(argv)
    from tools import exercise as module

    return module.start(module.find_stage(args.stage), args.fresh)


def check(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./workshop check",
        description="Is your exercise right, and is it faster? Without NN: the score card.",
    )
    parser.add_argument("stage", nargs="?", metavar="NN", help="01 to 06")
    parser.add_argument("--quick", action="store_true", help="do not time it")
    parser.add_argument("--repeats", type=at_least_one, default=3, help="of the timing; default 3")
    parser.add_argument("--hint", action="store_true", help="show the next hint, check nothing")
    limit = {"type": at_least_one, "default": 300, "metavar": "SECONDS"}
    parser.add_argument("--limit", **limit, help="for a process of your script; default 300")
    args = parser.parse_args(argv)
    if args.stage is None:
        if args.hint:
            parser.error("--hint needs the number of an exercise")
        from tools import check as module

        return module.score_card()
    from tools import exercise as exercises

    stage = exercises.find_stage(args.stage)
    if args.hint:
        return exercises.hint(stage)
    from tools import check as module

    return module.run(stage, args.quick, args.repeats, args.limit)


def main() -> int:
    known = {"exercise": exercise, "check": check}
    known |= {"run": run, "bench": bench, "results": results, "scale": scale, "report": report}
    command = (known | {"xray": xray, "doctor": doctor, "test": test, "data": data})[sys.argv[1]]
    from tools.logged_run import Problem

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl+C: no stage is left alone
    try:
        return command(sys.argv[2:])
    except UnknownStage as error:
        print(f"workshop: {error}", file=sys.stderr)
        return 2
    except Problem as problem:
        print(f"workshop: {problem}", file=sys.stderr)
        return 1
    except OSError as error:  # a folder that cannot be written, say
        print(f"workshop: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nworkshop: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
