"""A recorded profile (XSpace) as columns: planes, their lines, and the events of each line.

A plane is a host or a device, a line a thread or a stream. Read from the bytes themselves, without
TensorFlow: its trace converter ends at a million events, and an object for each takes gigabytes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tfworkshop.report import wire

# A stat's value, by its field number in the file.
DOUBLE, UNSIGNED, SIGNED, TEXT, RAW, REFERENCE = 2, 3, 4, 5, 6, 7
EVENT = 0x22  # the tag of an event in a line
CHUNK = 500_000  # events that are taken apart at a time


@dataclass
class Stats:
    """What is told of events beside name and time: a row for each value."""

    event: np.ndarray  # which event of the line, ascending
    name: np.ndarray  # the number of its name
    kind: np.ndarray
    value: np.ndarray  # a number, or where the text starts
    end: np.ndarray  # where it ends


@dataclass
class Line:
    plane: Plane
    id: int
    name: str
    name_id: np.ndarray
    start_ps: np.ndarray  # since the epoch
    duration_ps: np.ndarray
    at: np.ndarray  # where each event lies in the file
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.name_id)

    @property
    def end_ps(self) -> np.ndarray:
        return self.start_ps + self.duration_ps

    def names(self, rows: np.ndarray | None = None) -> list[str]:
        ids = self.name_id if rows is None else self.name_id[rows]
        known = self.plane.event_names
        return [known.get(i, "") for i in ids.tolist()]

    def called(self, test) -> np.ndarray:
        """Which events have a name that passes the test: asked once for each name."""
        ids = np.unique(self.name_id)
        chosen = [i for i in ids.tolist() if test(self.plane.event_names.get(i, ""))]
        return np.isin(self.name_id, chosen)

    def stats(self, rows: np.ndarray | None = None) -> Stats:
        """Of all events, or of some; the rows are then counted within those."""
        at, size = (self.at, self.size) if rows is None else (self.at[rows], self.size[rows])
        return read_stats(self.plane.data, at, at + size)

    def having(self, name: str) -> np.ndarray:
        """The events that have this stat: one of each name is asked, all others have the same."""
        wanted = self.plane.stat_ids(name)
        if not wanted:
            return np.zeros(0, np.int64)
        ids, first = np.unique(self.name_id, return_index=True)
        stats = self.stats(first)
        has = ids[np.unique(stats.event[np.isin(stats.name, wanted)])]
        return np.flatnonzero(np.isin(self.name_id, has))

    def with_number(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The events that have this stat, and its value, a whole number."""
        rows = self.having(name)
        stats = self.stats(rows)
        named = np.isin(stats.name, self.plane.stat_ids(name))
        fits = named & np.isin(stats.kind, (UNSIGNED, SIGNED))
        return rows[stats.event[fits]], stats.value[fits]

    def texts(self, name: str, rows: np.ndarray) -> list[str]:
        """One stat of some events, where it is a text."""
        made = [""] * len(rows)
        wanted = self.plane.stat_ids(name)
        if wanted:
            stats = self.stats(rows)
            for i in np.flatnonzero(np.isin(stats.name, wanted)).tolist():
                made[int(stats.event[i])] = str(self.plane.value(stats, i))
        return made


@dataclass
class Plane:
    data: np.ndarray
    name: str = ""
    lines: list[Line] = field(default_factory=list)
    event_names: dict[int, str] = field(default_factory=dict)  # as they are shown
    full_names: dict[int, str] = field(default_factory=dict)  # where that is another
    stat_names: dict[int, str] = field(default_factory=dict)
    told: dict[str, object] = field(default_factory=dict)  # of the device itself
    span: tuple[int, int] = (0, 0)  # where it lies in the file
    line_spans: list[tuple[int, int]] = field(default_factory=list)  # and its lines

    def stat_ids(self, name: str) -> list[int]:
        return [i for i, known in self.stat_names.items() if known == name]

    def value(self, stats: Stats, i: int) -> object:
        """One value as Python has it."""
        kind, value = int(stats.kind[i]), int(stats.value[i])
        if kind in (TEXT, RAW):
            return text(self.data, value, int(stats.end[i]))
        if kind == REFERENCE:
            return self.stat_names.get(value, "")
        if kind == DOUBLE:
            return struct.unpack("<d", self.data[value : value + 8].tobytes())[0]
        return value % (1 << 64) if kind == UNSIGNED else value

    def by_event(self, stats: Stats) -> Iterator[tuple[int, str, object]]:
        for i in range(len(stats.event)):
            name = self.stat_names.get(int(stats.name[i]), "")
            yield int(stats.event[i]), name, self.value(stats, i)


@dataclass
class Space:
    data: bytes
    planes: list[Plane] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    texts: list[tuple[int, int]] = field(default_factory=list)  # where names lie in the file


def text(data: np.ndarray, at: int, end: int) -> str:
    """A name may hold anything: what is no UTF-8 shows as a question mark."""
    return data[at:end].tobytes().decode("utf-8", "replace")


# --- reading ---


def read(data: bytes) -> Space:
    """Everything but the events' stats, which are read when they are asked for."""
    space, array_of = Space(data), np.frombuffer(data, np.uint8)
    for number, at, end in wire.fields(data, 0, len(data)):
        if number == 1:
            space.planes.append(read_plane(space, array_of, at, end))
        elif number == 4:
            space.hosts.append(text(array_of, at, end))
    return space


def read_plane(space: Space, data: np.ndarray, at: int, end: int) -> Plane:
    plane, told = Plane(data, span=(at, end)), []
    for number, first, last in wire.fields(space.data, at, end):
        if number == 2:
            plane.name = text(data, first, last)
            space.texts.append((first, last))
        elif number == 3:
            plane.line_spans.append((first, last))
        elif number == 4:
            key, name, to_show = read_entry(space, data, first, last)
            plane.event_names[key] = to_show or name
            if to_show and to_show != name:
                plane.full_names[key] = name
        elif number == 5:
            key, name, _ = read_entry(space, data, first, last)
            plane.stat_names[key] = name
        elif number == 6:
            told.append((first, last))
    if told:
        stats = read_stats_of(data, np.zeros(len(told), np.int64), *map(np.array, zip(*told)))
        plane.told = {name: value for _, name, value in plane.by_event(stats)}
    plane.lines = [read_line(space, plane, *span) for span in plane.line_spans]
    return plane


def read_entry(space: Space, data: np.ndarray, at: int, end: int) -> tuple[int, str, str]:
    """An entry of a map: its number, the name (field 2) and the one to show (field 4)."""
    key, found = 0, {2: "", 4: ""}
    for number, first, last in wire.fields(space.data, at, end):
        if number == 1:
            key = wire.signed(first)
        elif number == 2:
            for inner, start, stop in wire.fields(space.data, first, last):
                if inner in found:
                    space.texts.append((start, stop))
                    found[inner] = text(data, start, stop)
    return key, found[2], found[4]


def read_line(space: Space, plane: Plane, at: int, end: int) -> Line:
    raw, starts, sizes = space.data, array("q"), array("i")
    numbers: dict[int, int] = {}
    names: dict[int, str] = {}
    try:
        while at < end:
            if raw[at] == EVENT:  # nearly all of the file: no call for each
                size = raw[at + 1]
                if size < 128:
                    at += 2
                else:
                    size, at = wire.varint(raw, at + 1)
                starts.append(at)
                sizes.append(size)
                at += size
                continue
            number, first, last, at = wire.one_field(raw, at, end)
            if number in (2, 11):
                names[number] = text(plane.data, first, last)
                space.texts.append((first, last))
            else:
                numbers[number] = wire.signed(first)
    except IndexError:
        raise wire.Broken from None
    if at != end:
        raise wire.Broken
    spans = np.frombuffer(starts, np.int64), np.frombuffer(sizes, np.int32)
    columns = read_events(plane.data, *spans)
    columns[1] += numbers.get(3, 0) * 1000
    name = names.get(11) or names.get(2) or str(numbers.get(10) or numbers.get(1, 0))
    return Line(plane, numbers.get(1, 0), name, *columns, *spans)


def read_events(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Name, offset and duration of each event."""
    made = [np.zeros(len(starts), np.int64) for _ in range(3)]
    for first in range(0, len(starts), CHUNK):
        at = starts[first : first + CHUNK]
        ends = at + sizes[first : first + CHUNK]
        for which, number, value, _ in wire.columns(data, at, ends):
            for column, wanted in zip(made, (1, 2, 3)):
                fits = number == wanted
                column[first + which[fits]] = value[fits]
    return made


def read_stats(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Stats:
    found = []
    for which, number, first, last in wire.columns(data, starts, ends):
        fits = number == 4
        found.append((which[fits], first[fits], last[fits]))
    if not found:
        return Stats(*[np.zeros(0, np.int64)] * 5)
    event, first, last = (np.concatenate(part) for part in zip(*found))
    order = np.argsort(event, kind="stable")
    return read_stats_of(data, event[order], first[order], last[order])


def read_stats_of(data: np.ndarray, event: np.ndarray, at: np.ndarray, until: np.ndarray) -> Stats:
    made = Stats(event, *[np.zeros(len(event), np.int64) for _ in range(4)])
    for which, number, first, last in wire.columns(data, at, until):
        named = number == 1
        made.name[which[named]] = first[named]
        valued = ~named
        made.kind[which[valued]] = number[valued]
        made.value[which[valued]] = first[valued]
        made.end[which[valued]] = last[valued]
    return made
