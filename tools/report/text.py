"""The report on a terminal: 100 columns, colour only where there is a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from tools.report.figures import printable
from tools.report.profile import Profile
from tools.report.text_parts import (
    TOP,
    devices_table,
    gaps_table,
    hosts_table,
    input_lines,
    kernels_table,
    kinds_line,
    layers_table,
    memory_lines,
    operations_table,
    retraced_lines,
    step_lines,
)

DEVICES = "Devices, from the first kernel to the last (of all: of the whole recording)"


def title(profile: Profile) -> str:
    """Run, hosts and devices; a run that is named like its host is named once."""
    count, kind = profile.device_count, profile.device_type
    computed = sum(device.kernels > 0 for device in profile.devices)
    devices = f"{count} {kind}" if count else "no GPU"
    if computed and computed < count:
        devices = f"{computed} of {count} {kind} computed"
    hosts = profile.hosts[0] if len(profile.hosts) == 1 else f"{len(profile.hosts)} hosts"
    return printable(", ".join(dict.fromkeys((profile.run, hosts, devices))))


def head(profile: Profile) -> list[Text]:
    """The answer: the verdict, what it rests on, what to do."""
    lines = [Text(printable(profile.verdict["sentence"]), style="bold")]
    if profile.verdict["evidence"]:
        lines.append(Text(printable("Evidence: " + profile.verdict["evidence"])))
    return [*lines, Text("Next: " + profile.verdict["next"])]


def show(profile: Profile, console: Console) -> None:
    colour = console.color_system is not None
    lines = [*head(profile), Text(), Text(title(profile), style="bold")]
    lines += [Text(printable(profile.path), overflow="fold")]
    lines += [Text(printable(note)) for note in profile.notes]
    console.print(*lines, Text(), *step_lines(profile, colour), sep="\n")
    busy = [device for device in profile.devices if device.kernels]
    on_device, on_host = (
        [op for op in profile.operations if op.where == side][:TOP] for side in ("device", "host")
    )
    for heading, table in (
        ("Hosts", hosts_table(profile)),
        (DEVICES, devices_table(profile.devices, busy)),
        ("What the host did while a device computed nothing, ms", gaps_table(busy)),
        ("Time by layer, ms", layers_table(profile)),
        ("The most expensive operations on the device", operations_table(on_device)),
        ("The most expensive operations on the host", operations_table(on_host)),
        ("The most expensive GPU kernels", kernels_table(profile.kernels[:TOP])),
    ):
        if table.row_count:
            console.print(Text(), Text(heading, style="bold"), table, sep="\n")
    lines = kinds_line(profile)
    in_16, in_32 = (profile.precision.get(f"bits{n}_percent") for n in (16, 32))
    if in_16 is not None and in_32 is not None:
        lines.append(Text(f"Device time in 16 bit {in_16:.1f} %, in 32 bit {in_32:.1f} %"))
    lines += memory_lines(profile) + retraced_lines(profile) + input_lines(profile)
    if profile.missing:
        lines += [Text(), Text("Not in this profile", style="bold")]
        lines += [Text(f"  {line}") for line in profile.missing]
    console.print(*lines, sep="\n")
