"""Numbers and tables as all commands print them."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def console(stderr: bool = False) -> Console:
    """Colour and width of the terminal; 100 columns for a file or a pipe.

    Text is printed as it is: brackets in the name of a device are no markup.
    """
    output = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not output.is_terminal:
        output.width = 100
    return output


def number(value: float | None) -> str:
    """1,234 but 12.3: three digits or more."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}"


def ratio(value: float | None, base: float | None) -> str:
    """2.57x but 26x."""
    if not value or not base:
        return "-"
    factor = value / base
    if factor >= 10:
        return f"{factor:.0f}x"
    return f"{factor:.2f}x"


def spread(values: Sequence[float]) -> str:
    return f"{number(min(values))} to {number(max(values))}"


def as_markdown(titles: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A Markdown table: the first `left` columns hold words, the others numbers."""
    rule = "|" + "---|" * left + "--:|" * (len(titles) - left)
    header, *lines = ["| " + " | ".join(row) + " |" for row in [titles, *rows]]
    return "\n".join([header, rule, *lines])


def print_table(
    console: Console, titles: list[str], rows: list[list[str]], words: Sequence[str] = ()
) -> None:
    """A table on the terminal: the first column and those named in `words` hold words."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i, title in enumerate(titles):
        is_words = i == 0 or title in words
        table.add_column(title, justify="left" if is_words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    console.print("", table, "", sep="\n")
