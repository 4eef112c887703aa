"""Made-up profiles with known answers, written with TensorFlow's own message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

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
            added = event.stats.add(metadata_id=self.number(at.stat_metadata, stat))
            if isinstance(value, str):
                added.str_value = value
            elif isinstance(value, float):
                added.double_value = value
            else:
                added.int64_value = value
        return self

    def kernel(
        self, name: str, start: float, length: float, stream: int = 1, gpu: int = 0, **stats: object
    ) -> Made:
        line = f"Stream #{stream}(Compute)"
        return self.event(f"/device:GPU:{gpu}", line, name, start, length, **stats)

    def host(self, thread: str, name: str, start: float, length: float, **stats: object) -> Made:
        return self.event("/host:CPU", thread, name, start, length, **stats)

    def step(self, number: int, start: float, length: float, name: str = "train") -> Made:
        return self.host("python", name, start, length, step_num=number, _r=1)

    def launch(self, number: int, called: float, start: float, length: float, **stats: Any) -> Made:
        """A kernel, and the call of 4 µs that launches it."""
        self.host("tf_gpu_private_0/1", "cuLaunchKernel", called, 4, correlation_id=number)
        return self.kernel(stats.pop("name", "k"), start, length, correlation_id=number, **stats)

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
        profile = Profile("made", "/nowhere", ["made.xplane.pb"], [host.name])
        reader.read_hosts(profile, [host])
        return profile


def encode_varint(value: int) -> bytes:
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes([*result, value])


def many_events(count: int) -> bytes:
    """A host with one thread of so many events of 1 µs, each 2 µs after the other: quickly made."""
    offsets = np.arange(count, dtype=np.int64) * 2_000_000
    events = np.zeros((count, 16), np.uint8)
    events[:, :4] = (0x22, 14, 0x08, 1)  # an event of 14 bytes, of the name 1
    events[:, 4] = 0x10
    for i in range(7):  # its offset, in seven bytes
        events[:, 5 + i] = (offsets >> (7 * i)) & 127 | (128 if i < 6 else 0)
    events[:, 12:] = (0x18, *(1_000_000 >> 7 * i & 127 | (128 if i < 2 else 0) for i in range(3)))
    body = b"\x08\x01\x12\x07threads" + events.tobytes()
    named = b"\x22\x09\x08\x01\x12\x05\x08\x01\x12\x01x"  # the name x, as the entry 1
    plane = b"\x12\x09/host:CPU" + b"\x1a" + encode_varint(len(body)) + body + named
    return b"\x0a" + encode_varint(len(plane)) + plane + b"\x22\x04many"
