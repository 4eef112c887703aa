"""The causes to choose from, more than there are mysteries, and what confirms each of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfworkshop.mysteries.evidence import LinesByFunction, Log, Timeline
from tfworkshop.report.figures import percent
from tfworkshop.report.profile import Profile
from tfworkshop.terminal import number

FALSE_SPEED = 2  # claimed by real speed: on a busy machine they differ by up to 1.5
WAITING_FOR_DATA = 0.10  # of a step: 04 waits for less than 0.01
SLOW_LINES = 0.15  # of the loop's time
LONG_EXCHANGE = 0.5  # of a step
LATE = 0.4  # of a step: on a busy machine equal ranks differ by a third
OFTEN_LAST = 0.75  # of the exchanges: equal ranks take turns

USUAL_LINE = re.compile(r"\b(?:fetch_batch|train_step|log_step)\(|float\(loss\)")
PROFILER_LINE = re.compile(r"\btf\.profiler\b")
WRITING_LINE = re.compile(r"save|write|dump|flush|open\(", re.I)
# What Python reads is not the step's own; dropout's seeds are copied up to 05, and 06 removes them.
USUAL_READER = re.compile(r"^Python$|StatelessRandomGetKeyCounter")


@dataclass(frozen=True)
class Finding:
    confirmed: bool
    figures: str  # a sentence


# --- one function for each cause ---


def judge_clock(log: Log) -> Finding:
    claimed, real = number(log.claimed_speed), number(log.real_speed)
    return Finding(
        log.claimed_speed > FALSE_SPEED * log.real_speed,
        f"The log says {claimed} img/s; the time stamps of its lines say {real}.",
    )


def judge_xla(log: Log) -> Finding:
    """In no mystery: a run with the other setting would show it."""
    if log.xla == "off":
        return Finding(False, "The log's summary says: xla off.")
    return Finding(False, "It runs with XLA, but --xla off does not make this much difference.")


def judge_input(profile: Profile) -> Finding:
    share = profile.steps.share("input")
    figures = f"In the profile {percent(share)} of a step waits for data."
    return Finding(share >= WAITING_FOR_DATA, figures)


def judge_retracing(profile: Profile) -> Finding:
    steps = profile.steps.count
    times = sum(function.traced for function in profile.retraced if function.name == "train_step")
    figures = f"In the profile train_step was traced {times} time(s) in {steps} steps."
    return Finding(times > 1, figures)


def judge_eager(profile: Profile) -> Finding:
    if any(operation.mode == "graph" for operation in profile.operations):
        return Finding(False, "The operations in the profile belong to a graph.")
    return Finding(True, "The operations in the profile belong to no graph.")


def judge_python(lines: LinesByFunction) -> Finding:
    return judge_unusual_lines(lines, writing=False)


def judge_writing(lines: LinesByFunction) -> Finding:
    return judge_unusual_lines(lines, writing=True)


def judge_unusual_lines(lines: LinesByFunction, writing: bool) -> Finding:
    """The share of train_loop's time in lines that no other stage's loop has."""
    loop = [line for line in lines["train_loop"] if not PROFILER_LINE.search(line.source)]
    unusual = [
        line
        for line in loop
        if not USUAL_LINE.search(line.source) and bool(WRITING_LINE.search(line.source)) == writing
    ]
    share = sum(line.milliseconds for line in unusual) / sum(line.milliseconds for line in loop)
    kind = "lines that write" if writing else "Python besides fetching, training and logging"
    figures = f"In the line profile {percent(share)} of the loop's time is {kind}"
    if share < SLOW_LINES:
        return Finding(False, f"{figures}.")
    slowest = max(unusual, key=lambda line: line.milliseconds)
    return Finding(True, f"{figures}: {slowest.source}")


def judge_reading(lines: LinesByFunction) -> Finding:
    times = lines["get_dataset"][0].hits
    steps = sum(line.hits for line in lines["train_loop"] if "fetch_batch(" in line.source)
    figures = f"In the line profile get_dataset ran {times} time(s) for {steps} steps."
    return Finding(times > 2, figures)


def judge_copies(on_ideal_gpu: Profile) -> Finding:
    to_host = [copy for copy in on_ideal_gpu.copies if copy.way == "to host"]
    unusual = [copy for copy in to_host if not USUAL_READER.search(copy.reader)]
    count = sum(copy.per_step for copy in unusual)
    figures = f"Besides loss and dropout's seeds a step copies {count:.3g} tensors to the host"
    if not unusual:
        return Finding(False, f"{figures}.")
    return Finding(True, f"{figures}, for instance what {unusual[0].source} computes.")


def judge_straggler(timeline: Timeline) -> Finding:
    rank, times_last = next(iter(timeline.last_ranks.items()))  # the most frequent is first
    exchanges = sum(timeline.last_ranks.values())
    late_ms = timeline.last_lag_ms or 0.0
    step_ms = timeline.step_ms or 0.0
    figures = (
        f"In the timeline rank {rank} was the last one in {times_last} of {exchanges} exchanges; "
        f"the last rank is {late_ms:.0f} ms after the first, in a step of {step_ms:.0f} ms."
    )
    often = times_last >= OFTEN_LAST * exchanges
    return Finding(often and late_ms >= LATE * step_ms, figures)


def judge_exchange(timeline: Timeline) -> Finding:
    figures = f"In the timeline the exchange takes {percent(timeline.exchanging)} of a step."
    return Finding(timeline.exchanging >= LONG_EXCHANGE, figures)


@dataclass(frozen=True)
class Cause:
    name: str
    description: str
    tool: str  # the one whose evidence tells: a key of evidence.read
    judge: Callable[[Any], Finding]


CAUSES = (
    Cause("clock", "nothing is slow: the clock stops too early", "log", judge_clock),
    Cause("copies", "the step copies tensors from device to host", "ideal GPU", judge_copies),
    Cause("eager", "the step is not a graph: Python starts each operation", "profile", judge_eager),
    Cause("exchange", "the ranks' exchange takes most of a step", "timeline", judge_exchange),
    Cause("input", "batches are made image by image, while the step waits", "profile", judge_input),
    Cause("python", "Python computes something at every step", "lines", judge_python),
    Cause("reading", "the data file is read again for each batch", "lines", judge_reading),
    Cause("retracing", "the graph is traced again at every step", "profile", judge_retracing),
    Cause("straggler", "one rank is late, and the others wait for it", "timeline", judge_straggler),
    Cause("writing", "something is written to disk at every step", "lines", judge_writing),
    Cause("xla", "XLA compiles it, and costs more than it gains", "log", judge_xla),
)
CAUSE_BY_NAME = {cause.name: cause for cause in CAUSES}
