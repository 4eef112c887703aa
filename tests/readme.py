"""Markdown pages as data, and a shell that types their commands.

test_docs.py types the commands of every page and compares what they print with what the page
shows. An HTML comment right under a block says otherwise:

<!-- not run by tests: WHY -->              commands that no test can run
<!-- run by tests/test_x.py::test_y -->     commands that another test runs; after a second colon:
                                            only the commands that start with these words
<!-- not compared by tests: WHY -->         output from elsewhere
<!-- output of: COMMAND -->                 printed by a command that only the tests type

A page is typed from the top folder on; a block of commands where the one above it ended.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tfworkshop import processes

MARKDOWN = MarkdownIt("commonmark").enable("table")
MARKS = {
    "not run": re.compile(r"not run by tests: (?P<why>.+)"),
    "run by": re.compile(r"run by (?P<file>tests/\w+\.py)(::(?P<test>\w+))?(: (?P<words>.+))?"),
    "not compared": re.compile(r"not compared by tests: (?P<why>.+)"),
    "output of": re.compile(r"output of: (?P<command>.+)"),
}


@dataclass
class Block:
    """A fenced block, and the marks under it."""

    language: str
    text: str
    marks: list[tuple[str, re.Match[str]]] = field(default_factory=list)

    @property
    def first(self) -> str:
        return self.text.split("\n")[0]

    @property
    def commands(self) -> list[str]:
        """One per line, without comments; a backslash continues a line."""
        if self.language != "bash":
            return []
        lines = self.text.replace("\\\n", " ").split("\n")
        commands = [re.sub(r"(^|\s+)#\s.*$", "", line).strip() for line in lines]
        return [command for command in commands if command]

    def marked(self, kind: str) -> list[re.Match[str]]:
        return [match for name, match in self.marks if name == kind]

    def is_typed(self, command: str) -> bool:
        """Whether the walk types this command."""
        elsewhere = [mark["words"] or "" for mark in self.marked("run by")]
        return not self.marked("not run") and not command.startswith(tuple(elsewhere))


def marks_in(html: str) -> list[tuple[str, re.Match[str]]]:
    comments = re.findall(r"<!-- (.*?) -->", html)
    matches = [(kind, form.fullmatch(text)) for text in comments for kind, form in MARKS.items()]
    return [(kind, match) for kind, match in matches if match]


class Readme:
    """One Markdown page: its blocks, links, code spans and the anchors of its headings."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.folder = Path(name).parent
        self.text = text
        self.blocks: list[Block] = []
        self.links: list[str] = []
        self.images: list[str] = []
        self.spans: list[str] = []
        self.anchors: set[str] = set()
        under_block = False
        in_heading = False
        for token in MARKDOWN.parse(text):
            if token.type == "fence":
                self.blocks.append(Block(token.info, token.content.rstrip("\n")))
                under_block = True
            elif token.type == "html_block":
                self.spans += re.findall(r"<code>([^<]+)</code>", token.content)
                if under_block:
                    self.blocks[-1].marks += marks_in(token.content)
            elif token.type == "inline":
                under_block = False
                self._add_inline(token.children or [], in_heading)
            in_heading = token.type == "heading_open"

    def _add_inline(self, children: list[Token], in_heading: bool) -> None:
        for child in children:
            if child.type == "code_inline":
                self.spans.append(" ".join(child.content.split()))
            elif child.type == "link_open":
                self.links.append(str(child.attrs["href"]))
            elif child.type == "image":
                self.images.append(str(child.attrs["src"]))
        if in_heading:  # its anchor, as GitHub makes it
            title = "".join(child.content for child in children).lower()
            self.anchors.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))

    @property
    def commands(self) -> list[str]:
        return [command for block in self.blocks for command in block.commands]


# --- typing the commands ---


@dataclass(frozen=True)
class Typed:
    """A command of a page, what was typed in its place, and how it ended."""

    command: str
    typed: str
    status: int
    output: str


# A bash for each command; folder and exported variables are handed from one to the next.
SHELL = """\
source "$STATE"
{ %s
}
status=$?
{ export -p; printf 'cd %%q\\n' "$PWD"; } > "$STATE"
exit $status
"""


@dataclass
class Walk:
    """Types the commands of pages in one folder; a command that several pages have, once."""

    top: Path
    env: dict[str, str]
    shorten: Callable[[str], str] = str
    seconds: float = 600
    done: dict[tuple[str, str], Future[tuple[int, str]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def walk(self, page: Readme) -> list[Typed]:
        """Type a page from its first block to its last, as a reader would."""
        at_the_top = f"cd {shlex.quote(str(self.top))}\n"
        state = self.top.parent / page.name.replace("/", "-")
        state.write_text(at_the_top)
        typed = []
        for block in page.blocks:
            before = folder_in(state)
            for command in filter(block.is_typed, block.commands):
                typed.append(self._type(command, state))
            if "workshop exercise" in block.text:
                assert folder_in(state) == before, f"{page.name}: its exercise cannot be skipped"
        state.write_text(at_the_top)
        for block in page.blocks:
            for mark in block.marked("output of"):
                typed.append(self._type(mark["command"], state))
        return typed

    def _type(self, command: str, state: Path) -> Typed:
        line = self.shorten(command)
        if re.match(r"cd |source |export ", line):  # they change the shell: typed for every page
            return Typed(command, line, *self._run(line, state))
        key = (str(folder_in(state)), line)
        if re.match(r"\S*workshop (run|bench|scale) ", line):  # the same in any folder
            key = ("", line.lstrip("./"))
        with self.lock:
            is_new = key not in self.done
            future = self.done.setdefault(key, Future())
        if is_new:
            future.set_result(self._run(line, state))
        return Typed(command, line, *future.result())

    def _run(self, line: str, state: Path) -> tuple[int, str]:
        ended = processes.run(
            ["bash", "--norc", "--noprofile", "-c", SHELL % line],
            timeout=self.seconds,
            cwd=self.top,
            env={**self.env, "STATE": str(state)},
        )
        output = (ended.stdout + ended.stderr).replace(str(self.top), "/home/me/workshop")
        if ended.timed_out:
            output += f"\nended after {self.seconds} s"
        return ended.status, output


def folder_in(state: Path) -> Path:
    """The folder in which the last command ended."""
    last = state.read_text().splitlines()[-1]
    return Path(shlex.split(last)[1])


# --- comparing what they print ---

RULE = re.compile(r"\s*[─━═]{10,}[─━═\s]*")
NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)*(?:e[+-]?\d+)?"
UNIT = r"(?:ns|us|µs|ms|s|B|kB|KiB|MiB|GiB|%)"
FIGURE = re.compile(rf"{NUMBER}(?: {UNIT})?|-")
# What differs between machines and between runs, and what stands for it.
VARIES = [
    (re.compile(r"\x1b\[[\d;]*[A-Za-z]"), ""),
    (re.compile(r"(\.py):\d+"), r"\1"),
    (re.compile(r"^\[[\d,]+\]<stdout>:"), "rank: "),
    (re.compile(r"^((?:rank: )?(?:device|precision|xla) +).*"), r"\1*"),
    (re.compile(r"\d{4}(_\d\d){5}, .*"), "time, machine"),
    (re.compile(r"#{5,}[.I]*"), "bar"),
    (re.compile(rf"(?<![\w.]){NUMBER} {UNIT}(?!\w)"), "0 unit"),
    (re.compile(rf"(?<![\w.]){NUMBER}"), "0"),
    (re.compile(r"\s+"), " "),
]


def normalized(text: str) -> list[str]:
    """The lines of an output without what varies; a row of a table is known by its columns."""
    lines = []
    in_table = False
    for line in text.splitlines():
        if line.strip() in ("", "..."):
            in_table = in_table and bool(line.strip())
        elif RULE.fullmatch(line):
            in_table = True
            lines.append("rule")
        elif in_table:
            cells = re.split(r"\s{2,}", line.strip())
            kinds = ["0" if FIGURE.fullmatch(cell) else "word" for cell in cells]
            lines.append(" ".join(kinds))
        else:
            for varying, placeholder in VARIES:
                line = varying.sub(placeholder, line)
            lines.append(line.strip())
    return lines


def missing_line(shown: str, printed: str) -> str | None:
    """The first line shown that is not printed, after those above it; "..." stands for anything."""
    lines = iter(normalized(printed))
    for wanted in normalized(shown):
        pattern = re.escape(wanted).replace(r"\.\.\.", ".*")
        ending = re.compile(rf"(^|.*\s){pattern}")  # a page may leave out the first columns
        if not any(ending.fullmatch(line) for line in lines):
            return wanted
    return None
