"""Protocol buffers' wire format, read into NumPy columns without an object per message.

Only what a profile needs. Positions are offsets into one array of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Broken(ValueError):
    """The bytes are not a message, or not a whole one."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it."""
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


def to_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def read_field(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """The field at a position: its number, its value twice, and the position after it.

    For bytes and fixed sizes the two values are where the content starts and ends.
    """
    tag, at = read_varint(data, at)
    kind = tag & 7
    if kind == VARINT:
        value, at = read_varint(data, at)
        return tag >> 3, value, value, at
    if kind == BYTES:
        size, at = read_varint(data, at)
    elif kind in (FIXED64, FIXED32):
        size = 8 if kind == FIXED64 else 4
    else:
        raise Broken
    if at + size > end or tag < 8:
        raise Broken
    return tag >> 3, at, at + size, at + size


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number and value of each field of the message between two positions."""
    try:
        while at < end:
            number, first, last, at = read_field(data, at, end)
            yield number, first, last
    except IndexError:
        raise Broken from None
    if at != end:
        raise Broken


def read_varints(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """read_varint() for many positions at once."""
    byte = data[at]
    value = (byte & 127).astype(np.int64)
    at = at + 1
    longer = np.flatnonzero(byte >= 128)
    for shift in range(7, 64, 7):
        if not len(longer):
            return value, at
        byte = data[at[longer]]
        value[longer] |= (byte & 127).astype(np.int64) << shift
        at[longer] += 1
        longer = longer[byte >= 128]
    if len(longer):
        raise Broken
    return value, at


def columns(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """The fields of many messages: the first field of each, then the second of each, and so on.

    Yields which messages still have a field, its number, and its value twice, as in fields().
    """
    which = np.arange(len(starts))
    at = starts.astype(np.int64)
    ends = ends.astype(np.int64)
    try:
        while True:
            unfinished = at < ends
            if not unfinished.all():
                which, at, ends = which[unfinished], at[unfinished], ends[unfinished]
            if not len(which):
                return
            tag, at = read_varints(data, at)
            kind = tag & 7
            has_varint = (kind == VARINT) | (kind == BYTES)
            if has_varint.all():
                value, after = read_varints(data, at)
            else:
                if not (has_varint | (kind == FIXED64) | (kind == FIXED32)).all():
                    raise Broken
                value, after = np.where(kind == FIXED64, 8, 4), at.copy()
                value[has_varint], after[has_varint] = read_varints(data, at[has_varint])
            has_content = kind != VARINT
            first = np.where(has_content, after, value)
            after = np.where(has_content, after + value, after)
            last = np.where(has_content, after, value)
            if (after > ends).any():
                raise Broken
            yield which, tag >> 3, first, last
            at = after
    except IndexError:
        raise Broken from None
