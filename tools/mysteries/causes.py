"""What can be wrong with a training, and what tells: more causes than there are mysteries."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tools.exercises.timing import CLOCK
from tools.mysteries.evidence import Facts, Line
from tools.report.figures import percent
from tools.report.verdict import LIMITS
from tools.terminal import number

Found = tuple[bool, str]  # does it fit, and the figures that say so

SLOW_LINE = 0.15  # of the loop's time
USUAL = re.compile(r"\b(?:fetch_batch|train_step|log_step)\(|\bwindow\.")  # as in every loop
WRITES = re.compile(r"save|write|dump|flush|open\(", re.I)
LATE = 0.4  # of a step: on a busy machine equal ranks differ by a third
OFTEN = 0.75  # of the exchanges: where nobody is late it is each rank's turn
# In every stage up to 05: 06 removes them.
KNOWN_COPIES = ("the batch, from tf.data", "Python reads the loss", "StatelessRandomGetKeyCounter")


def slow_clock(facts: Facts) -> Found | None:
    if (log := facts.log) is None:
        return None
    says = f"The log says {number(log.claimed)} img/s; the time stamps of its lines say"
    return log.claimed > CLOCK * log.real, f"{says} {number(log.real)}."


def waits_for_input(facts: Facts) -> Found | None:
    if facts.profile is None or not facts.profile.steps.count:
        return None
    share = facts.profile.steps.share("input")
    return share >= LIMITS["input"], f"In the profile {percent(share)} of a step waits for data."


def unusual_lines(facts: Facts, writing: bool) -> Found | None:
    loop = (facts.lines or {}).get("train_loop")
    if not loop:
        return None
    loop = [line for line in loop if "window." not in line.source]  # starts and ends a profile
    total = sum(line.ms for line in loop)
    found = [line for line in loop if not USUAL.search(line.source)]
    found = [line for line in found if bool(WRITES.search(line.source)) == writing]
    share = sum(line.ms for line in found) / total if total else 0.0
    what = "lines that write" if writing else "Python besides fetching, training and logging"
    told = f"In the line profile {percent(share)} of the loop's time is {what}"
    worst = max(found, key=lambda line: line.ms, default=Line("", 0, 0.0))
    fits = share >= SLOW_LINE
    return fits, f"{told}: {worst.source}" if fits else f"{told}."


def traces_again(facts: Facts) -> Found | None:
    if facts.profile is None or not facts.profile.steps.count:
        return None
    again = [one for one in facts.profile.retraced if one.name == "train_step"]
    traced, steps = sum(one.traced for one in again), facts.profile.steps.count
    return traced > 1, f"In the profile train_step was traced {traced} time(s) in {steps} steps."


def reads_again(facts: Facts) -> Found | None:
    read, loop = ((facts.lines or {}).get(name) for name in ("get_dataset", "train_loop"))
    steps = [line.hits for line in loop or () if "fetch_batch(" in line.source]
    if not read or not steps:
        return None
    told = f"In the line profile get_dataset ran {read[0].hits} time(s) for {steps[0]} steps."
    return read[0].hits > 2, told


def is_eager(facts: Facts) -> Found | None:
    if facts.profile is None or not facts.profile.operations:
        return None
    kinds = {op.mode for op in facts.profile.operations if op.mode != "tf.data"}
    in_graph = "graph" in kinds
    told = "are those of a graph" if in_graph else "are no graph's"
    return not in_graph, f"The operations in the profile {told}."


def uses_xla(facts: Facts) -> Found | None:
    if (log := facts.log) is None:
        return None
    if log.xla == "off":
        return False, "The log's summary says: xla off."
    return False, "It runs with XLA. What that brings, a run with --xla off tells: not this much."


def copies_back(facts: Facts) -> Found | None:
    if facts.copies is None:
        return None
    more = [copy for copy in facts.copies if not copy["cause"].startswith(KNOWN_COPIES)]
    told = f"Besides batch, loss and dropout's seeds xray finds {len(more)} copies a step"
    return bool(more), f"{told}: {more[0]['cause']}." if more else f"{told}."


def is_late(facts: Facts) -> Found | None:
    if (line := facts.timeline) is None:
        return None
    told = f"In the timeline rank {line.late_rank} came last in {line.times_last} of "
    told += f"{line.exchanges} exchanges, at the median {line.late_ms:.0f} ms after the first, "
    often = line.times_last >= OFTEN * line.exchanges
    late = line.late_ms >= LATE * line.step_ms
    return often and late, f"{told}of a step of {line.step_ms:.0f} ms."


def exchanges_long(facts: Facts) -> Found | None:
    if (line := facts.timeline) is None:
        return None
    told = f"In the timeline the exchange takes {line.exchange_ms:.0f} ms of a step of"
    return line.exchange_ms >= 0.5 * line.step_ms, f"{told} {line.step_ms:.0f} ms."


@dataclass(frozen=True)
class Cause:
    name: str
    says: str
    tool: str  # of TOOLS
    look: Callable[[Facts], Found | None]


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
          lambda facts: unusual_lines(facts, writing=False)),
    Cause("reading", "the data file is read again for each batch", "lines", reads_again),
    Cause("retracing", "the graph is traced again at every step", "profile", traces_again),
    Cause("straggler", "one rank is late, and the others wait for it", "timeline", is_late),
    Cause("writing", "something is written to disk at every step", "lines",
          lambda facts: unusual_lines(facts, writing=True)),
    Cause("xla", "XLA compiles it, and costs more than it brings", "log", uses_xla),
)  # fmt: skip
BY_NAME = {cause.name: cause for cause in CAUSES}
