"""Made-up profiles with known answers, written with TensorFlow's own message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfworkshop.report import reader, xspace
from tfworkshop.report.profile import Profile
from tfworkshop.report.recording import Host


class Made:
    """A profile of one host; times are in microseconds."""

    def __init__(self, host: str = "made") -> None:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        self.space = xplane_pb2.XSpace(hostnames=[host])
        self.lines: dict[tuple[str, str], Any] = {}

    def plane(self, name: str) -> Any:
        for plane in self.space.planes:
            if plane.name == name:
                return plane
        return self.space.planes.add(name=name)

    def number(self, known: Any, name: str) -> int:
        for number, entry in known.items():
            if entry.name == name:
                return number
        number = len(known) + 1
        known[number].id, known[number].name = number, name
        return number

    def event(
        self, plane: str, line: str, name: str, start: float, length: float, **stats: object
    ) -> Made:
        at = self.plane(plane)
        if (plane, line) not in self.lines:
            self.lines[plane, line] = at.lines.add(id=len(at.lines) + 1, name=line)
        event = self.lines[plane, line].events.add(
            metadata_id=self.number(at.event_metadata, name),
            offset_ps=round(start * 1e6),
            duration_ps=round(length * 1e6),
        )
        for stat, value in stats.items():
            field = "str_value" if isinstance(value, str) else "int64_value"
            number = self.number(at.stat_metadata, stat)
            event.stats.add(metadata_id=number, **{field: value})
        return self

    def kernel(self, name: str, start: float, length: float, stream: int = 1, **stats: Any) -> Made:
        line = f"Stream #{stream}(Compute)"
        return self.event("/device:GPU:0", line, name, start, length, **stats)

    def host(self, thread: str, name: str, start: float, length: float, **stats: object) -> Made:
        return self.event("/host:CPU", thread, name, start, length, **stats)

    def step(
        self, number: int, start: float, length: float, name: str = "train", **stats: object
    ) -> Made:
        """A marker, as Keras sets it; with _r=1 it is a root."""
        return self.host("python", name, start, length, step_num=number, **stats)

    def launch(self, number: int, called: float, start: float, length: float, **stats: Any) -> Made:
        """A kernel, and the call of 4 µs that launches it."""
        self.host("tf_gpu_private_0/1", "cuLaunchKernel", called, 4, correlation_id=number)
        return self.kernel(stats.pop("name", "k"), start, length, correlation_id=number, **stats)

    def many(self, count: int) -> Made:
        """So many events of 1 µs on one thread, one every 2 µs."""
        self.host("threads", "x", 0, 1)
        events = self.lines["/host:CPU", "threads"].events
        for i in range(1, count):
            events.add(metadata_id=1, offset_ps=2_000_000 * i, duration_ps=1_000_000)
        return self

    def write(self, folder: Path, name: str = "made") -> Path:
        file = folder / f"{name}.xplane.pb"
        file.write_bytes(self.space.SerializeToString())
        return file

    def read(self) -> Host:
        space = xspace.read(self.space.SerializeToString())
        return Host(space.hosts[0], Path("made.xplane.pb"), space)

    def profile(self) -> Profile:
        """What the report makes of it."""
        host = self.read()
        profile = Profile("made", "/nowhere", [host.name])
        reader.read_hosts(profile, [host])
        return profile
