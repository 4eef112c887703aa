"""Operations from the events themselves, where TensorFlow's table has none: JAX on a CPU, say."""

from __future__ import annotations

import re

import numpy as np

from tools.report.profile import Operation, Profile
from tools.report.recording import Host
from tools.report.xspace import Line

WORKERS = re.compile(r"^tf_(?!data)|XLA|Eigen|pjrt|TfrtCpu", re.I)
EAGER = re.compile(r"EagerLocalExecute: (?!__inference)")
# What the runtime does around the operations.
AROUND = re.compile(
    r"^(Executor|Thunk|Threadpool|Memory|FunctionRun|Eager|TFE_|Iterator|Kernel|TaskDispatcher|Wait"
    r"|Tfrt|PjRt|Pjit|\$|Xla(Module|Compile|Launch)|InstantiatedCaptured|Host|Parallel|BFC|Donation)"
    r"|::|\(wait"
)


def add_operations(profile: Profile, hosts: list[Host]) -> None:
    """Only where the converter's table tells nothing but the input pipeline."""
    table = [op for op in profile.operations if op.mode != "tf.data" and op.type != "XlaModule"]
    if not table:
        made = operations(hosts)
        if made:
            rest = [op for op in profile.operations if op.mode == "tf.data"]
            profile.operations = sorted([*made, *rest], key=lambda op: -op.self_ms)
            profile.notes.append("Operations are read from the events: no table has them.")
    if not profile.operations:
        profile.missing.append("No operations recorded.")


def operations(hosts: list[Host]) -> list[Operation]:
    """Those that XLA names, or else what ran on TensorFlow's worker threads, by self time."""
    lines = [line for host in hosts for line in host.threads]
    found = collect([(line, with_text(line, "hlo_op")) for line in lines], compiled=True)
    if not found:
        workers = [line for line in lines if WORKERS.search(line.name)]
        chosen = [(ln, np.flatnonzero(~ln.called(AROUND.search))) for ln in workers]
        found = {**collect(chosen, compiled=False), **eager(lines)}
    total = sum(spent for _, spent in found.values())
    return [
        Operation(name, kind, "host", mode, count, spent / 1e9, spent / total, None)
        for (name, kind, mode), (count, spent) in found.items()
    ]


def eager(lines: list[Line]) -> dict[tuple[str, str, str], tuple[int, int]]:
    """What Python started one by one, by type: such operations have no name of their own."""
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for line in lines:
        rows = np.flatnonzero(line.called(EAGER.match))
        for name, spent in zip(line.names(rows), line.duration_ps[rows].tolist()):
            kind = name.partition(": ")[2]
            count, before = found.get((kind, kind, "eager"), (0, 0))
            found[kind, kind, "eager"] = count + 1, before + spent
    return found


def collect(
    chosen: list[tuple[Line, np.ndarray]], compiled: bool
) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Count and self time by name, type and mode."""
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for line, rows in chosen:
        rows = rows[line.duration_ps[rows] > 0]
        modules = line.texts("hlo_module", rows) if compiled else [""] * len(rows)
        ids = line.name_id[rows].tolist()
        told = zip(ids, line.names(rows), modules, self_times(line, rows))
        for number, name, module, spent in told:
            kind = re.sub(r"[.\d]+$", "", name)
            full = line.plane.full_names.get(number, name).partition(":")[0]
            key = (f"{module}/{full}" if module else full, kind, "XLA" if compiled else "graph")
            count, before = found.get(key, (0, 0))
            found[key] = count + 1, before + spent
    return found


def with_text(line: Line, stat: str) -> np.ndarray:
    """The events that have this stat: one of each name is asked."""
    wanted = line.plane.stat_ids(stat)
    if not wanted:
        return np.zeros(0, np.int64)
    ids, first = np.unique(line.name_id, return_index=True)
    stats = line.stats(first)
    has = ids[np.unique(stats.event[np.isin(stats.name, wanted)])]
    return np.flatnonzero(np.isin(line.name_id, has))


def self_times(line: Line, rows: np.ndarray) -> list[int]:
    """Of each of these events, without what runs inside it on the same thread."""
    starts, lengths = line.start_ps[rows].tolist(), line.duration_ps[rows].tolist()
    made, open_events = list(lengths), []
    for i in sorted(range(len(rows)), key=lambda i: (starts[i], -lengths[i])):
        while open_events and starts[open_events[-1]] + lengths[open_events[-1]] <= starts[i]:
            open_events.pop()
        if open_events:
            made[open_events[-1]] -= lengths[i]
        open_events.append(i)
    return [max(0, spent) for spent in made]
