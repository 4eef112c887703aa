"""Operations from the events themselves, where TensorFlow's table has none: JAX on a CPU, say."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tfworkshop.report.profile import Operation, Profile
from tfworkshop.report.recording import Host
from tfworkshop.report.xspace import Line

WORKERS = re.compile(r"^tf_(?!data)|XLA|Eigen|pjrt|TfrtCpu", re.I)
EAGER = re.compile(r"EagerLocalExecute: (?!__inference)")
# What the runtime does around the operations.
AROUND = re.compile(
    r"^(Executor|Thunk|Threadpool|Memory|FunctionRun|Eager|TFE_|Iterator|Kernel|TaskDispatcher|Wait"
    r"|Tfrt|PjRt|Pjit|\$|Xla(Module|Compile|Launch)|InstantiatedCaptured|Host|Parallel|BFC|Donation)"
    r"|::|\(wait"
)
Key = tuple[str, str, str]  # name, type and mode


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
    calls = [call for line in lines for call in named_calls(line, line.having("hlo_op"), "XLA")]
    if not calls:
        for line in lines:
            if WORKERS.search(line.name):
                rows = np.flatnonzero(~line.called(AROUND.search))
                calls += named_calls(line, rows, "graph")
        calls += [call for line in lines for call in eager_calls(line)]
    found: dict[Key, tuple[int, int]] = {}
    for key, spent in calls:
        count, before = found.get(key, (0, 0))
        found[key] = count + 1, before + spent
    total = sum(spent for _, spent in calls) or 1  # events may all have no length
    return [
        Operation(name, kind, "host", mode, count, spent / 1e9, spent / total, None)
        for (name, kind, mode), (count, spent) in found.items()
    ]


def named_calls(line: Line, rows: np.ndarray, mode: str) -> Iterator[tuple[Key, int]]:
    """Each of these events, with its self time."""
    rows = rows[line.duration_ps[rows] > 0]
    modules = line.texts("hlo_module", rows) if mode == "XLA" else [""] * len(rows)
    ids = line.name_id[rows].tolist()
    for i, name, module, spent in zip(ids, line.names(rows), modules, self_times(line, rows)):
        kind = re.sub(r"[.\d]+$", "", name)
        full = line.plane.full_names.get(i, name).partition(":")[0]
        yield (f"{module}/{full}" if module else full, kind, mode), spent


def eager_calls(line: Line) -> Iterator[tuple[Key, int]]:
    """What Python started one by one, by type: such operations have no name of their own."""
    rows = np.flatnonzero(line.called(EAGER.match))
    for name, spent in zip(line.names(rows), line.duration_ps[rows].tolist()):
        kind = name.partition(": ")[2]
        yield (kind, kind, "eager"), spent


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
