"""Several hosts: their steps as one, and the one that the others wait for."""

from __future__ import annotations

import statistics

from tools.report.profile import LABELS, HostSteps, Profile, Step, Steps

LAG = 0.1  # from this share above the median host on, a host is a straggler


def add_hosts(profile: Profile, hosts: list[tuple[str, list[Step]]]) -> None:
    """The mean step of all hosts, so that its parts add up; and a row for each of several."""
    profile.steps = Steps.of(joined([steps for _, steps in hosts if steps]))
    if len(hosts) < 2:
        return
    rows = [row(name, steps) for name, steps in hosts]
    own = [item.own_ms for item in rows if item.own_ms]
    middle = statistics.median(own) if own else 0.0
    for item in rows:
        if item.own_ms and middle:
            item.lag = item.own_ms / middle - 1
    profile.host_steps = rows
    slowest = max(rows, key=lambda item: item.lag or 0.0)
    if slowest.lag and slowest.lag >= LAG:
        profile.notes.append(
            f"{slowest.host} is the straggler: {slowest.own_ms:.1f} ms of its own work a step, "
            f"{middle:.1f} on the median host. In synchronous training all wait for it."
        )


def joined(hosts: list[list[Step]]) -> list[Step]:
    """Step by step the mean of the hosts that have it."""
    found: dict[str, list[Step]] = {}
    for steps in hosts:
        for step in steps:
            found.setdefault(step.name, []).append(step)
    return [mean(name, steps) for name, steps in found.items()]


def mean(name: str, steps: list[Step]) -> Step:
    split = {key: statistics.fmean(step.split[key] for step in steps) for key in LABELS}
    return Step(name, statistics.fmean(step.total_ms for step in steps), split)


def row(host: str, steps: list[Step]) -> HostSteps:
    """Its own work is the step without the exchange, in which a fast host waits for a slow one."""
    if not steps:
        return HostSteps(host, 0, None, 0.0, None)
    found = Steps.of(steps)
    own = statistics.median(
        step.total_ms - step.split["collectives"] - step.split["device_to_device"] for step in steps
    )
    return HostSteps(host, found.count, found.median_ms, found.share("input"), own)
