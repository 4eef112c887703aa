"""Numbers and names as the report shows them, and the colours of a step's parts."""

from __future__ import annotations

import msgspec

from tfworkshop.report.profile import LABELS

COLOURS = {  # of a step's parts; the page has the same
    "input": "#d1495b",
    "host_compute": "#3d7ea6",
    "kernel_launch": "#e0a030",
    "device_compute": "#3a9a68",
    "device_to_device": "#9a6fb0",
    "collectives": "#6a57a5",
    "output": "#c77dba",
    "compilation": "#a0674f",
    "other": "#8a9099",
}
GAP_COLOURS = {  # what the host did in a gap: a colour means the same everywhere
    "exchange": COLOURS["collectives"],
    "copy": COLOURS["device_to_device"],
    "launch": COLOURS["kernel_launch"],
    "input": COLOURS["input"],
    "python": "#2a8f9c",
    "wait": "#b8bec6",
    "nothing": COLOURS["other"],
}
MARKS = dict(zip(LABELS, "I#LD<CO*."))  # where there is no colour


def ms(value: float | None) -> str:
    """Three figures, whatever the size."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def encode_json(data: object) -> str:
    return msgspec.json.format(msgspec.json.encode(data), indent=1).decode() + "\n"
