"""Two profiles on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tools.report.compare import Comparison, Difference
from tools.report.figures import ms, printable
from tools.report.profile import Profile
from tools.report.text import title
from tools.report.text_parts import TOP, end_of, new_table, start_of


def differences_table(items: list[Difference], names: str) -> Table:
    both = [(item.a_count, item.b_count) for item in items if item.a_count and item.b_count]
    counted = any(abs(a - b) > 0.5 for a, b in both)
    table = new_table("A|B|B - A" + ("|count A|count B" if counted else ""), names)
    for item in items:
        style = "green" if item.difference_ms < 0 else "red" if item.difference_ms > 0 else ""
        change = Text(f"{'+' if item.difference_ms > 0 else ''}{ms(item.difference_ms)}", style)
        room = 32 if counted else 44
        told = [start_of(item.type, 21), end_of(item.name, room)]
        if "|" not in names:
            told = [start_of(item.name, room + 20)]
        counts = [count(item.a_count), count(item.b_count)] if counted else []
        table.add_row(ms(item.a_ms), ms(item.b_ms), change, *counts, *told)
    return table


def count(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def show_both(a: Profile, b: Profile, comparison: Comparison, console: Console) -> None:
    for letter, profile in (("A", a), ("B", b)):
        console.print(Text(f"{letter}  {title(profile)}", style="bold"))
        for line in (profile.path, profile.verdict["sentence"], *profile.notes):
            console.print(Padding(Text(printable(line)), (0, 0, 0, 3), expand=False))
    console.print(Text(), Text(comparison.sentence, style="bold"), sep="\n")
    for note in comparison.notes:
        console.print(Text(note))
    console.print(Text(f"Next, for B: {comparison.next}"), Text(), sep="\n")
    unit = "ms a step" if comparison.per_step else "ms in all"
    split = sorted(comparison.split, key=lambda item: -abs(item.difference_ms))
    for what, items, names in (
        ("A step's parts", split, "part"),
        ("Operations", comparison.operations[:TOP], "type|operation"),
        ("Kernels", comparison.kernels[:TOP], "kernel"),
    ):
        if items:
            heading = Text(f"{what}, {unit}, sorted by the difference", style="bold")
            console.print(heading, differences_table(items, names), Text())
