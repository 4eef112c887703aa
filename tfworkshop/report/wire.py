"""Protocol buffers' wire format, read into numpy columns: no object for each message.

Only what a profile needs. Positions are offsets into one array of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Broken(ValueError):
    """These bytes are no message, or not a whole one."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise Broken


def encoded(value: int) -> bytes:
    """A number as it is written."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def one_field(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """The field at a place: its number, its value, and the place after it.

    A number's value comes twice; of bytes the start and the end are given.
    """
    tag, at = varint(data, at)
    kind = tag & 7
    if kind == VARINT:
        value, at = varint(data, at)
        return tag >> 3, value, value, at
    if kind == BYTES:
        size, at = varint(data, at)
    elif kind in (FIXED64, FIXED32):
        size = 8 if kind == FIXED64 else 4
    else:
        raise Broken
    if at + size > end or tag < 8:
        raise Broken
    return tag >> 3, at, at + size, at + size


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each field of the message between two places, as one_field() gives it."""
    try:
        while at < end:
            number, first, last, at = one_field(data, at, end)
            yield number, first, last
    except IndexError:
        raise Broken from None
    if at != end:
        raise Broken


def varints(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same for many places at once."""
    byte = data[at]
    value = (byte & 127).astype(np.int64)
    at = at + 1
    more = np.flatnonzero(byte >= 128)
    for shift in range(7, 64, 7):
        if not len(more):
            return value, at
        byte = data[at[more]]
        value[more] |= (byte & 127).astype(np.int64) << shift
        at[more] += 1
        more = more[byte >= 128]
    if len(more):
        raise Broken
    return value, at


def columns(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """The fields of many messages, the first of each, then the second of each, and so on.

    Gives which messages still had one, its number, and its value: two columns as in fields().
    """
    which = np.arange(len(starts))
    at = starts.astype(np.int64)
    ends = ends.astype(np.int64)
    try:
        while True:
            left = at < ends
            if not left.all():
                which, at, ends = which[left], at[left], ends[left]
            if not len(which):
                return
            tag, at = varints(data, at)
            kind = tag & 7
            counted = (kind == VARINT) | (kind == BYTES)
            if counted.all():
                value, after = varints(data, at)
            else:
                if not (counted | (kind == FIXED64) | (kind == FIXED32)).all():
                    raise Broken
                value, after = np.where(kind == FIXED64, 8, 4), at.copy()
                value[counted], after[counted] = varints(data, at[counted])
            spans = kind != VARINT
            first = np.where(spans, after, value)
            after = np.where(spans, after + value, after)
            second = np.where(spans, after, value)
            if (after > ends).any():
                raise Broken
            yield which, tag >> 3, first, second
            at = after
    except IndexError:
        raise Broken from None
