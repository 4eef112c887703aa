"""What can be wrong with a training, and what tells: more causes than there are mysteries."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfworkshop.mysteries.evidence import Facts, Lines, Log, Timeline
from tfworkshop.report.figures import percent
from tfworkshop.report.profile import Profile
from tfworkshop.report.verdict import LIMITS
from tfworkshop.terminal import number

Found = tuple[bool, str]  # does it fit, and the figures that say so

TOO_GOOD = 2  # times the speed of the time stamps: on a busy machine they differ by a half
SLOW_LINE = 0.15  # of the loop's time
USUAL = re.compile(r"\b(?:fetch_batch|train_step|log_step)\(|\bwindow\.")  # as in every loop
WRITES = re.compile(r"save|write|dump|flush|open\(", re.I)
LATE = 0.4  # of a step: on a busy machine equal ranks differ by a third
OFTEN = 0.75  # of the exchanges: where nobody is late it is each rank's turn
# In every stage up to 05: 06 removes them.
KNOWN_COPIES = ("the batch, from tf.data", "Python reads the loss", "StatelessRandomGetKeyCounter")


def slow_clock(log: Log) -> Found:
    says = f"The log says {number(log.claimed)} img/s; the time stamps of its lines say"
    return log.claimed > TOO_GOOD * log.real, f"{says} {number(log.real)}."


def waits_for_input(profile: Profile) -> Found | None:
    if not profile.steps.count:
        return None
    share = profile.steps.share("input")
    return share >= LIMITS["input"], f"In the profile {percent(share)} of a step waits for data."


def unusual_lines(lines: Lines, writing: bool) -> Found | None:
    # window starts and ends a profile
    loop = [line for line in lines.get("train_loop", []) if "window." not in line.source]
    if not loop:
        return None
    found = [line for line in loop if not USUAL.search(line.source)]
    found = [line for line in found if bool(WRITES.search(line.source)) == writing]
    share = sum(line.ms for line in found) / max(sum(line.ms for line in loop), 1e-9)
    what = "lines that write" if writing else "Python besides fetching, training and logging"
    told = f"In the line profile {percent(share)} of the loop's time is {what}"
    if share < SLOW_LINE:
        return False, f"{told}."
    return True, f"{told}: {max(found, key=lambda line: line.ms).source}"


def traces_again(profile: Profile) -> Found | None:
    steps = profile.steps.count
    if not steps:
        return None
    traced = sum(one.traced for one in profile.retraced if one.name == "train_step")
    return traced > 1, f"In the profile train_step was traced {traced} time(s) in {steps} steps."


def reads_again(lines: Lines) -> Found | None:
    read, loop = lines.get("get_dataset"), lines.get("train_loop", [])
    steps = [line.hits for line in loop if "fetch_batch(" in line.source]
    if not read or not steps:
        return None
    told = f"In the line profile get_dataset ran {read[0].hits} time(s) for {steps[0]} steps."
    return read[0].hits > 2, told


def is_eager(profile: Profile) -> Found | None:
    if not profile.operations:
        return None
    in_graph = any(op.mode == "graph" for op in profile.operations)
    told = "are those of a graph" if in_graph else "are no graph's"
    return not in_graph, f"The operations in the profile {told}."


def uses_xla(log: Log) -> Found:
    if log.xla == "off":
        return False, "The log's summary says: xla off."
    return False, "It runs with XLA. What that brings, a run with --xla off tells: not this much."


def copies_back(copies: list[dict]) -> Found:
    more = [copy for copy in copies if not copy["cause"].startswith(KNOWN_COPIES)]
    told = f"Besides batch, loss and dropout's seeds xray finds {len(more)} copies a step"
    return bool(more), f"{told}: {more[0]['cause']}." if more else f"{told}."


def is_late(line: Timeline) -> Found:
    told = f"In the timeline rank {line.late_rank} came last in {line.times_last} of "
    told += f"{line.exchanges} exchanges, at the median {line.late_ms:.0f} ms after the first, "
    often = line.times_last >= OFTEN * line.exchanges
    late = line.late_ms >= LATE * line.step_ms
    return often and late, f"{told}of a step of {line.step_ms:.0f} ms."


def exchanges_long(line: Timeline) -> Found:
    told = f"In the timeline the exchange takes {line.exchange_ms:.0f} ms of a step of"
    return line.exchange_ms >= 0.5 * line.step_ms, f"{told} {line.step_ms:.0f} ms."


@dataclass(frozen=True)
class Cause:
    name: str
    says: str
    tool: str  # the one of Facts that tells
    judge: Callable[[Any], Found | None]

    def look(self, facts: Facts) -> Found | None:
        shown = getattr(facts, self.tool)
        return None if shown is None else self.judge(shown)


# Typed in the mystery's folder.
TOOLS = {
    "log": "python train_MNIST.py --steps 60 --logdir logs | tee log.txt",
    "profile": "python train_MNIST.py --steps 60 --logdir logs | tee log.txt",
    "lines": "kernprof -l train_MNIST.py --steps 30",
    "timeline": (
        "HOROVOD_CACHE_CAPACITY=0 HOROVOD_TIMELINE=$PWD/timeline.json \\\n"
        "  horovodrun -np 2 python train_MNIST.py --steps 30"
    ),
}
CAUSES = (
    Cause("clock", "nothing is slow: the clock stops too early", "log", slow_clock),
    Cause("copies", "the step sends tensors from device to host", "xray", copies_back),
    Cause("eager", "the step is no graph: Python starts each operation", "profile", is_eager),
    Cause("exchange", "the ranks' exchange takes most of a step", "timeline", exchanges_long),
    Cause("input", "batches are made one image at a time, while the step waits", "profile",
          waits_for_input),
    Cause("python", "Python computes something at every step", "lines",
          lambda lines: unusual_lines(lines, writing=False)),
    Cause("reading", "the data file is read again for each batch", "lines", reads_again),
    Cause("retracing", "the graph is traced again at every step", "profile", traces_again),
    Cause("straggler", "one rank is late, and the others wait for it", "timeline", is_late),
    Cause("writing", "something is written to disk at every step", "lines",
          lambda lines: unusual_lines(lines, writing=True)),
    Cause("xla", "XLA compiles it, and costs more than it brings", "log", uses_xla),
)  # fmt: skip
BY_NAME = {cause.name: cause for cause in CAUSES}
