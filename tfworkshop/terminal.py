"""Numbers and tables as all commands show them."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment
from rich.table import Table
from rich.text import Text


class Printable(RenderHook):
    """Names from elsewhere reach the terminal without what it would obey."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Harmless(renderable) for renderable in renderables]


class Harmless:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self.renderable, options):
            yield Segment(text if control else printable(text), style, control)


def console() -> Console:
    """Colour and width of the terminal; a file or a pipe has no width."""
    made = Console(highlight=False)
    if not made.is_terminal:
        made.width = 100
    made.push_render_hook(Printable())
    return made


def printable(text: str) -> str:
    """Without control characters, but with its lines."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")


def plain(text: str) -> str:
    """Words from elsewhere (a device's name) without what a page or a terminal would obey."""
    return "".join(letter for letter in text if letter.isprintable() and letter not in "|<>`")


def number(value: float | None) -> str:
    """1,234 but 12.3: three figures or more."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def ratio(value: float | None, base: float | None) -> str:
    if not value or not base:
        return "-"
    return f"{value / base:.2f}x" if value < 10 * base else f"{value / base:.0f}x"


def as_markdown(titles: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A table whose first columns are words, and the others numbers."""
    rule = "|" + "---|" * left + "--:|" * (len(titles) - left)
    lines = ["| " + " | ".join(map(plain, row)) + " |" for row in (titles, *rows)]
    return "\n".join([lines[0], rule, *lines[1:]])


def on_terminal(titles: list[str], rows: list[list[str]]) -> Table:
    """The same, for a terminal: words in the first column, then numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, title in enumerate(titles):
        table.add_column(title, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
