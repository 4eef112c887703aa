"""The files of a run, read: a host each, with its threads, its devices and its step markers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfworkshop.problem import Problem
from tfworkshop.progress import say
from tfworkshop.report import intervals, wire, xspace
from tfworkshop.report.gaps import DEVICE
from tfworkshop.report.intervals import Intervals
from tfworkshop.report.profile import ENDING, Retraced, Run
from tfworkshop.report.xspace import Line, Plane, Space

LARGE = 100_000_000  # bytes: from here on reading takes a while, and the reader is told


@dataclass
class Marker:
    name: str  # train 5
    number: int
    start_ps: int
    end_ps: int


@dataclass
class Host:
    name: str
    file: Path
    space: Space

    @property
    def threads(self) -> list[Line]:
        planes = [plane for plane in self.space.planes if not DEVICE.match(plane.name)]
        return [line for plane in planes for line in plane.lines if len(line)]

    @property
    def devices(self) -> list[Plane]:
        return [plane for plane in self.space.planes if DEVICE.match(plane.name)]

    def markers(self) -> list[Marker]:
        """The program's own step markers, whatever TensorFlow could make of them."""
        found = []
        for line in self.threads:
            rows, numbers = line.with_number("step_num")
            spans = zip(line.start_ps[rows].tolist(), line.end_ps[rows].tolist())
            for name, number, span in zip(line.names(rows), numbers.tolist(), spans):
                found.append(Marker(f"{name} {number}", number, *span))
        return sorted(found, key=lambda marker: marker.start_ps)

    def marked(self) -> Intervals:
        return intervals.joined((marker.start_ps, marker.end_ps) for marker in self.markers())

    def eager_calls(self) -> int:
        """How many operations Python started one by one; a tf.function counts as one."""
        found = [
            ln.called(lambda name: name.startswith("EagerLocalExecute")) for ln in self.threads
        ]
        return sum(int(calls.sum()) for calls in found)

    def recorded_ms(self) -> float | None:
        """From start to stop, as the profiler notes it; else from the first event to the last."""
        for plane in self.space.planes:
            start, stop = (plane.told.get(f"profile_{key}_time") for key in ("start", "stop"))
            if isinstance(start, int) and isinstance(stop, int) and stop > start:
                return (stop - start) / 1e6
        lines = [line for plane in self.space.planes for line in plane.lines if len(line)]
        if not lines:
            return None
        first = min(int(line.start_ps.min()) for line in lines)
        return (max(int(line.end_ps.max()) for line in lines) - first) / 1e9

    def retraced(self) -> list[Retraced]:
        """Each tf.function that was called, by how often it was traced."""
        found: dict[str, Retraced] = {}
        for line in self.threads:
            rows, counts = line.with_number("tracing_count")
            kinds = line.texts("tf_function_call", rows)
            for name, count, kind in zip(line.names(rows), counts.tolist(), kinds):
                item = found.setdefault(name, Retraced(name, 0, 0, 0))
                item.calls += 1
                item.traced += kind.startswith("traced")
                item.tracings = max(item.tracings, count)
        return [item for item in found.values() if item.traced or item.tracings > 2]

    def has(self, *beginnings: str) -> bool:
        """Was any event recorded whose name begins so?"""
        planes = self.space.planes
        return any(n.startswith(beginnings) for p in planes for n in p.event_names.values())


def read(run: Run) -> tuple[list[Host], list[str]]:
    """Every file that can be read, and a line about each that cannot."""
    size = sum(file.stat().st_size for file in run.files)
    if size > LARGE:
        say(
            f"workshop: {size / 1e6:,.0f} MB of profile: this takes a while. Ten steps are enough: "
            "start the profiler later, stop it sooner (--profile-steps in 04_tf_profiler)."
        )
    hosts, wrong = [], []
    for file in run.files:
        try:
            hosts.append(read_host(file))
        except Problem as problem:
            wrong.append(str(problem))
    if not hosts:
        raise Problem(wrong[0])
    tell_apart(hosts, run.folder)
    return hosts, [f"Left out: {line}" for line in wrong]


def tell_apart(hosts: list[Host], folder: Path) -> None:
    """Ranks of one node have its name: the file's name or its folder is added.

    A stage's --profile-ranks all leaves rank 0 in the folder itself, rank 1 in 1, and so on.
    """
    names = [host.name for host in hosts]
    for host in hosts:
        if names.count(host.name) > 1:
            inside = host.file.absolute().relative_to(folder).parts
            own = inside[0] if len(inside) > 1 else host.file.name[: -len(ENDING)]
            rank = {"plugins": "0"}.get(own, own)
            own = f"rank {rank}" if rank.isdigit() else own
            host.name = own if own.startswith(host.name) else f"{host.name} {own}"


def read_host(file: Path) -> Host:
    try:
        space = xspace.read(file.read_bytes())
    except OSError as error:
        raise Problem(f"{file} cannot be read: {error.strerror}") from None
    except wire.Broken:
        raise Problem(f"{file} is not a profile, or not a whole one") from None
    if not space.planes:
        raise Problem(f"{file} is empty: the profiler wrote nothing, was stop() called?")
    return Host(space.hosts[0] if space.hosts else file.name[: -len(ENDING)], file, space)
