"""What TensorBoard's own converters make of a profile: the report is compared with them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple


class Oracle(NamedTuple):
    steps: list[dict[str, Any]]  # TensorBoard's columns
    operations: dict[tuple[str, str, str], tuple[float, int]]  # self time in us, count
    kernels: Counter[str]  # ns by name
    bits16_percent: float
    peaks: dict[str, int]  # bytes by allocator


def rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table that is meant for Google's charts."""
    names = [column["id"] for column in table["cols"]]
    return [dict(zip(names, (cell["v"] for cell in row["c"]))) for row in table.get("rows", [])]


def convert(file: Path, tool: str) -> Any:
    try:
        from xprof.convert import raw_to_tool_data
    except ImportError:  # TensorFlow 2.17
        from tensorboard_plugin_profile.convert import raw_to_tool_data

        tool += "^"
    with tempfile.TemporaryDirectory() as folder:  # it writes a cache beside the file
        copy = shutil.copy(file, Path(folder) / "oracle.xplane.pb")
        data, _ = raw_to_tool_data.xspace_to_tool_data([str(copy)], tool, {})
    return json.loads(data or "{}")


def step_rows(file: Path) -> list[dict[str, Any]]:
    return rows(convert(file, "overview_page")[1])


def ask_tensorboard(file: Path) -> Oracle:
    overview = convert(file, "overview_page")
    operations = {}
    for row in rows(convert(file, "framework_op_stats")[1]):  # the second table is without idle
        key = row["operation"], row["type"], row["host_or_device"]
        operations[key] = row["total_self_time"], row["occurrences"]
    kernels: Counter[str] = Counter()
    for row in rows(convert(file, "kernel_stats")):
        kernels[row["kernel_name"]] += round(1000 * row["total_duration_us"])
    memory = convert(file, "memory_profile").get("memoryProfilePerAllocator", {})
    peaks = {n: int(m["profileSummary"]["peakStats"]["peakBytesInUse"]) for n, m in memory.items()}
    bits = overview[0]["p"].get("device_compute_16bit_percent", "0%")
    return Oracle(rows(overview[1]), operations, kernels, float(bits.rstrip("%")), peaks)
