"""A recorded profile (XSpace) as NumPy columns: planes, their lines, and each line's events.

A plane is a host or a device, a line a thread or a stream. Values that events carry beside name
and time (XStat) are read only when they are asked for.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tfworkshop.report import wire

# A stat's kind of value, by its field number in the file.
DOUBLE, UNSIGNED, SIGNED, TEXT, RAW, REFERENCE = 2, 3, 4, 5, 6, 7
EVENT_TAG = 0x22  # of an event in a line
CHUNK = 500_000  # events that are decoded at a time


@dataclass
class Stats:
    """Values of events, a row for each."""

    event: np.ndarray  # which of the events asked for, ascending
    name: np.ndarray  # the number of the stat's name
    kind: np.ndarray
    value: np.ndarray  # a number, or where the text starts
    end: np.ndarray  # where the text ends


@dataclass
class Line:
    plane: Plane
    name: str
    event_name: np.ndarray  # index into the plane's event_names
    start_ps: np.ndarray  # since the epoch
    end_ps: np.ndarray
    at: np.ndarray  # where each event lies in the file
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.event_name)

    @property
    def duration_ps(self) -> np.ndarray:
        return self.end_ps - self.start_ps

    def names(self, rows: np.ndarray) -> list[str]:
        known = self.plane.event_names
        return [known[i] for i in self.event_name[rows].tolist()]

    def matches(self, pattern: re.Pattern[str]) -> np.ndarray:
        """Which events have a name that the pattern finds."""
        return self.plane.matching_names(pattern)[self.event_name]

    def stats(self, rows: np.ndarray) -> Stats:
        starts = self.at[rows]
        return read_stats(self.plane.data, starts, starts + self.size[rows])

    def rows_with(self, stat: str) -> np.ndarray:
        """Events that carry this stat: one of each name is asked, the others are like it."""
        wanted = self.plane.stat_numbers(stat)
        if not wanted or not len(self):
            return np.zeros(0, np.int64)
        names, first = np.unique(self.event_name, return_index=True)
        stats = self.stats(first)
        having = names[np.unique(stats.event[np.isin(stats.name, wanted)])]
        return np.flatnonzero(np.isin(self.event_name, having))

    def numbers(self, stat: str) -> tuple[np.ndarray, np.ndarray]:
        """The events that carry this stat as a whole number, and the numbers."""
        rows = self.rows_with(stat)
        stats = self.stats(rows)
        chosen = np.isin(stats.name, self.plane.stat_numbers(stat))
        chosen &= np.isin(stats.kind, (UNSIGNED, SIGNED))
        return rows[stats.event[chosen]], stats.value[chosen]

    def integers(self, wanted: tuple[str, ...], rows: np.ndarray) -> np.ndarray:
        """Several stats of some events as whole numbers, a column for each; 0 if missing."""
        result = np.zeros((len(rows), len(wanted)), np.int64)
        stats = self.stats(rows)
        is_number = np.isin(stats.kind, (UNSIGNED, SIGNED))
        for column, stat in enumerate(wanted):
            chosen = is_number & np.isin(stats.name, self.plane.stat_numbers(stat))
            result[stats.event[chosen], column] = stats.value[chosen]
        return result

    def texts(self, stat: str, rows: np.ndarray) -> list[str]:
        """One stat of some events as text, "" where an event has none."""
        values = self.texts_of((stat,), rows)
        return values[0]

    def texts_of(self, wanted: tuple[str, ...], rows: np.ndarray) -> list[list[str]]:
        """Several stats of some events as text, a list for each stat."""
        by_number = {n: i for i, stat in enumerate(wanted) for n in self.plane.stat_numbers(stat)}
        result = [[""] * len(rows) for _ in wanted]
        if by_number and len(rows):
            stats = self.stats(rows)
            for i in np.flatnonzero(np.isin(stats.name, list(by_number))).tolist():
                column = result[by_number[int(stats.name[i])]]
                column[int(stats.event[i])] = str(self.plane.value(stats, i))
        return result


@dataclass
class Plane:
    data: np.ndarray
    name: str = ""
    lines: list[Line] = field(default_factory=list)
    event_names: list[str] = field(default_factory=list)  # as they are displayed
    full_names: list[str] = field(default_factory=list)  # TensorFlow's operations: name:type
    stat_names: dict[int, str] = field(default_factory=dict)
    stats: dict[str, object] = field(default_factory=dict)  # of the plane itself
    _matching: dict[re.Pattern[str], np.ndarray] = field(default_factory=dict)

    def matching_names(self, pattern: re.Pattern[str]) -> np.ndarray:
        if pattern not in self._matching:
            found = [bool(pattern.search(name)) for name in self.event_names]
            self._matching[pattern] = np.array(found, bool)
        return self._matching[pattern]

    def stat_numbers(self, stat: str) -> list[int]:
        return [number for number, name in self.stat_names.items() if name == stat]

    def value(self, stats: Stats, i: int) -> object:
        """One value as a Python object."""
        kind, value = int(stats.kind[i]), int(stats.value[i])
        if kind in (TEXT, RAW):
            return decode(self.data, value, int(stats.end[i]))
        if kind == REFERENCE:
            return self.stat_names.get(value, "")
        if kind == DOUBLE:
            return struct.unpack("<d", self.data[value : value + 8].tobytes())[0]
        return value % (1 << 64) if kind == UNSIGNED else value

    def named_values(self, stats: Stats) -> Iterator[tuple[int, str, object]]:
        """Event, name of the stat and value."""
        for i in range(len(stats.event)):
            name = self.stat_names.get(int(stats.name[i]), "")
            yield int(stats.event[i]), name, self.value(stats, i)


@dataclass
class Space:
    planes: list[Plane] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)


def decode(data: np.ndarray, at: int, end: int) -> str:
    """A name may hold anything: what is not UTF-8 becomes a question mark."""
    return data[at:end].tobytes().decode("utf-8", "replace")


# --- reading ---


def read(raw: bytes) -> Space:
    """Everything but the events' stats."""
    space, data = Space(), np.frombuffer(raw, np.uint8)
    for number, at, end in wire.fields(raw, 0, len(raw)):
        if number == 1:
            space.planes.append(read_plane(raw, data, at, end))
        elif number == 4:
            space.hosts.append(decode(data, at, end))
    return space


def read_plane(raw: bytes, data: np.ndarray, at: int, end: int) -> Plane:
    plane = Plane(data)
    line_spans, own_stats = [], []
    numbers: list[int] = []  # of the events' names
    for number, first, last in wire.fields(raw, at, end):
        if number == 2:
            plane.name = decode(data, first, last)
        elif number == 3:
            line_spans.append((first, last))
        elif number == 4:
            key, name, display = read_entry(raw, data, first, last)
            numbers.append(key)
            plane.event_names.append(display or name)
            plane.full_names.append(name)
        elif number == 5:
            key, name, _ = read_entry(raw, data, first, last)
            plane.stat_names[key] = name
        elif number == 6:
            own_stats.append((0, first, last))
    if own_stats:
        stats = decode_stats(data, *np.array(own_stats, np.int64).T)
        plane.stats = {name: value for _, name, value in plane.named_values(stats)}
    plane.event_names.append("")  # for an event whose name is missing
    plane.full_names.append("")
    known = np.array(numbers, np.int64)
    order = np.argsort(known, kind="stable")
    plane.lines = [read_line(raw, plane, known[order], order, *span) for span in line_spans]
    return plane


def read_entry(raw: bytes, data: np.ndarray, at: int, end: int) -> tuple[int, str, str]:
    """An entry of a map of names: number, name, display name."""
    key, texts = 0, {2: "", 4: ""}
    for number, first, last in wire.fields(raw, at, end):
        if number == 1:
            key = wire.to_signed(first)
        elif number == 2:
            for inner, start, stop in wire.fields(raw, first, last):
                if inner in texts:
                    texts[inner] = decode(data, start, stop)
    return key, texts[2], texts[4]


def read_line(
    raw: bytes, plane: Plane, known: np.ndarray, order: np.ndarray, at: int, end: int
) -> Line:
    starts, sizes = array("q"), array("i")
    numbers: dict[int, int] = {}
    names: dict[int, str] = {}
    try:
        while at < end:
            if raw[at] == EVENT_TAG:  # nearly all of the file, so without a call for each
                size = raw[at + 1]
                if size < 128:
                    at += 2
                else:
                    size, at = wire.read_varint(raw, at + 1)
                starts.append(at)
                sizes.append(size)
                at += size
                continue
            number, first, last, at = wire.read_field(raw, at, end)
            if number in (2, 11):
                names[number] = decode(plane.data, first, last)
            else:
                numbers[number] = wire.to_signed(first)
    except IndexError:
        raise wire.Broken from None
    if at != end:
        raise wire.Broken
    event_at, event_size = np.frombuffer(starts, np.int64), np.frombuffer(sizes, np.int32)
    name_number, offset_ps, duration_ps = read_events(plane.data, event_at, event_size)
    start_ps = offset_ps + numbers.get(3, 0) * 1000
    event_name = np.full(len(event_at), len(known))
    if len(known):
        place = np.minimum(np.searchsorted(known, name_number), len(known) - 1)
        event_name = np.where(known[place] == name_number, order[place], len(known))
    name = names.get(11) or names.get(2) or str(numbers.get(10) or numbers.get(1, 0))
    return Line(plane, name, event_name, start_ps, start_ps + duration_ps, event_at, event_size)


def read_events(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Number of the name, offset and duration of each event."""
    result = [np.zeros(len(starts), np.int64) for _ in range(3)]
    for first in range(0, len(starts), CHUNK):
        at = starts[first : first + CHUNK]
        ends = at + sizes[first : first + CHUNK]
        for which, number, value, _ in wire.columns(data, at, ends):
            for column, wanted in zip(result, (1, 2, 3)):
                fits = number == wanted
                column[first + which[fits]] = value[fits]
    return result


def read_stats(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Stats:
    parts = []
    for which, number, first, last in wire.columns(data, starts, ends):
        fits = number == 4
        parts.append((which[fits], first[fits], last[fits]))
    if not parts:
        return Stats(*[np.zeros(0, np.int64)] * 5)
    event, first, last = (np.concatenate(part) for part in zip(*parts))
    order = np.argsort(event, kind="stable")
    return decode_stats(data, event[order], first[order], last[order])


def decode_stats(data: np.ndarray, event: np.ndarray, at: np.ndarray, until: np.ndarray) -> Stats:
    stats = Stats(event, *[np.zeros(len(event), np.int64) for _ in range(4)])
    for which, number, first, last in wire.columns(data, at, until):
        is_name = number == 1
        stats.name[which[is_name]] = first[is_name]
        valued = ~is_name
        stats.kind[which[valued]] = number[valued]
        stats.value[which[valued]] = first[valued]
        stats.end[which[valued]] = last[valued]
    return stats
