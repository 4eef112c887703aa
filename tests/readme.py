"""READMEs as data: blocks, marks, commands, code in the text, links; and a shell to walk them in.

What is in a README is run and compared with what it shows (test_docs.py), unless a mark says
otherwise. A mark is an HTML comment on its own line right under the block it is about:

<!-- not run by tests: WHY -->                 a bash block that no test can run
<!-- run by tests/test_x.py::test_y -->        a bash block that another test runs for real
<!-- run by tests/test_x.py::test_y: WORDS --> of a bash block, the commands that start so
<!-- output of: COMMAND -->                    printed by this command: the README's own, named by
                                               its first words, or one that only the tests run
<!-- not compared by tests: WHY -->            output that is quoted from elsewhere

An output block without a mark was printed by the last command above it that tests run. One between
<!--= WHAT --> and <!--/=--> (tfworkshop/ladder/results.py) was printed by the script that WHAT names.
A bash block is run where the one above it ended, or in the top folder where the paragraph above it
says "top folder".
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from tfworkshop.ladder.results import MARK as FIGURE

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$", re.M | re.S
)
COMMENT = re.compile(r"<!--(?![=/])(.*?)-->", re.S)
UNDER = re.compile(r"\s*?\n(?:<!--/=-->)?((?:\s*<!--(?![=/]).*?-->)+)", re.S)
MARKS = {
    "not run": re.compile(r"not run by tests: (?P<why>.+)"),
    "run by": re.compile(r"run by (?P<test>tests/\w+\.py::\w+)(?:: (?P<words>.+))?"),
    "output of": re.compile(r"output of: (?P<command>.+)"),
    "not compared": re.compile(r"not compared by tests: (?P<why>.+)"),
}
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *#*$", re.M)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)|<code>([^<]+)</code>")


@dataclass
class Block:
    """What stands between two lines of ```."""

    language: str
    text: str  # without its indentation
    above: str  # the paragraph above it
    figure: str  # WHAT, where ./workshop results --write made it
    marks: list[tuple[str, re.Match[str]]] = field(default_factory=list)

    @property
    def first(self) -> str:
        return self.text.split("\n")[0]

    @property
    def commands(self) -> list[str]:
        """One a line, without comments; a line that ends with a backslash goes on."""
        if self.language != "bash":
            return []
        lines = self.text.replace("\\\n", " ").split("\n")
        found = (re.sub(r"(^|\s+)#\s.*$", "", line).strip() for line in lines)
        return [line for line in found if line]

    def marked(self, kind: str) -> list[re.Match[str]]:
        return [mark for found, mark in self.marks if found == kind]

    def run_elsewhere(self, command: str) -> bool:
        return any(command.startswith(mark["words"] or "") for mark in self.marked("run by"))

    def runs(self, command: str) -> bool:
        """Whether the tests walk through this command."""
        return not self.marked("not run") and not self.run_elsewhere(command)


class Readme:
    """One Markdown file, taken apart."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.folder = os.path.dirname(name)  # noqa: PTH120  a name, not a file
        self.blocks: list[Block] = []
        self.stray: list[str] = []  # comments that are no mark, or under no block
        figures = [(found.start(), found.end(), found[2]) for found in FIGURE.finditer(text)]
        under: set[int] = set()
        end = 0
        for found in FENCE.finditer(text):
            start = found.start()
            above = re.sub(r"<!--.*?-->", "", text[end:start], flags=re.S).strip()
            inside = [what for first, last, what in figures if first < start < last]
            body = textwrap.dedent(found["body"]).rstrip("\n")
            block = Block(found["language"], body, above.split("\n\n")[-1], *(inside or [""]))
            end = found.end()
            marks = UNDER.match(text, end)
            if marks:
                for comment in COMMENT.finditer(text, marks.start(1), marks.end(1)):
                    under.add(comment.start())
                    self._mark(block, comment[1].strip())
            self.blocks.append(block)
        self.stray += [c[1].strip() for c in COMMENT.finditer(text) if c.start() not in under]
        # Only the text: blocks and comments are looked at on their own.
        self.prose = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.S)

    def _mark(self, block: Block, comment: str) -> None:
        for kind, form in MARKS.items():
            found = form.fullmatch(comment)
            if found:
                block.marks.append((kind, found))
                return
        self.stray.append(comment)

    @property
    def spans(self) -> list[str]:
        """Code in the text: `so` and <code>so</code>."""
        return [" ".join((a or b).split()) for a, b in SPAN.findall(self.prose)]

    @property
    def links(self) -> list[str]:
        return [target for image, target in LINK.findall(self.prose) if not image]

    @property
    def images(self) -> list[str]:
        html = re.findall(r"<img[^>]* src=\"([^\"]+)\"", self.prose)
        return [target for image, target in LINK.findall(self.prose) if image] + html

    @property
    def anchors(self) -> set[str]:
        """Of the headings, as GitHub makes them; a second one of the same name gets -1."""
        found: list[str] = []
        for title in HEADING.findall(self.prose):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
            slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
        return {*found, *re.findall(r"<a (?:id|name)=\"([^\"]+)\"", self.prose)}


# --- commands ---


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of every command in a line of bash; where output goes is left out."""
    plain = re.sub(r"<[\w-]+>", "1", line)  # <project> is for the reader to fill in
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True
    words: list[str] = []
    skip = False
    for word in lexer:
        if skip or not set(word) <= set("();<>|&"):
            words += [] if skip else [word]
            skip = False
        elif set(word) <= set("<>"):
            skip = True
        else:
            if words:
                yield words
            words = []
    if words:
        yield words


@dataclass
class Ran:
    """A command, what was typed in its place, and how it ended."""

    command: str
    typed: str
    status: int
    output: str


class Shell:
    """A bash that stays: cd, export and activate hold until the README ends."""

    def __init__(self, top: Path, env: dict[str, str], seconds: float) -> None:
        self.top, self.seconds = top, seconds
        self.files = Path(tempfile.mkdtemp(prefix="shell-", dir=top.parent))
        self.bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=top,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.folder = top

    def run(self, command: str) -> tuple[int, str]:
        """Exit status and output; a command that takes too long is ended, and the shell with it."""
        out, err = self.files / "out", self.files / "err"
        after = """printf '\\n%s %s\\n' "$?" "$PWD\""""
        assert self.bash.stdin and self.bash.stdout
        timer = threading.Timer(self.seconds, self.kill)
        timer.start()
        try:
            line = f"{{ {command}\n}} >{shlex.quote(str(out))} 2>{shlex.quote(str(err))} </dev/null"
            self.bash.stdin.write(f"{line}; {after}\n")
            self.bash.stdin.flush()
            status = re.compile(r"(\d+) (/.*)\n")
            ended = next(filter(None, map(status.fullmatch, self.bash.stdout)), None)
        except BrokenPipeError:
            ended = None
        finally:
            timer.cancel()
        output = "".join(f.read_text(errors="replace") for f in (out, err) if f.exists())
        if ended is None:
            return -1, f"{output}\nthe shell ended here, or was ended after {self.seconds} s"
        self.folder = Path(ended[2])
        return int(ended[1]), output

    def kill(self) -> None:
        os.killpg(self.bash.pid, signal.SIGKILL)

    def close(self) -> None:
        assert self.bash.stdin and self.bash.stdout
        with contextlib.suppress(BrokenPipeError):  # it may be dead
            self.bash.stdin.close()
        self.bash.wait()
        self.bash.stdout.close()


class Walk:
    """Runs READMEs in one folder; a command that two of them have is run once."""

    def __init__(self, top: Path, env: dict[str, str], seconds: float = 600) -> None:
        self.top, self.env, self.seconds = top, env, seconds
        self.done: dict[tuple[str, str], Future[tuple[int, str]]] = {}
        self.lock = threading.Lock()

    def once(self, shell: Shell, command: str) -> tuple[int, str]:
        if re.match(r"(cd|source|export)\b", command):  # for this shell alone
            return shell.run(command)
        key = self.key(shell.folder, command)
        with self.lock:
            mine = key not in self.done
            future = self.done.setdefault(key, Future())
        if mine:
            try:
                future.set_result(shell.run(command))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()

    @staticmethod
    def key(folder: Path, command: str) -> tuple[str, str]:
        """Where it is typed, and what; a ladder and a plain training are the same anywhere."""
        if re.match(r"\S*workshop (run|scale|xray)\b", command):
            return "", command.replace("../", "./")
        plain = re.fullmatch(r"((?:horovodrun -np \d+ )?python )(\S+)((?: --steps \d+)?)", command)
        if plain:
            return "", f"{plain[1]}{folder / plain[2]}{plain[3]}"
        return str(folder), command

    def walk(self, readme: Readme, shorter) -> list[Ran]:
        """What a reader types from the first block to the last, and what only tests ask for."""
        ran: list[Ran] = []
        shell = Shell(self.top, self.env, self.seconds)
        try:
            for block in readme.blocks:
                if "top folder" in block.above and block.language == "bash":
                    shell.run(f"cd {shlex.quote(str(self.top))}")
                for command in filter(block.runs, block.commands):
                    typed = shorter(command)
                    ran.append(Ran(command, typed, *self.once(shell, typed)))
            shell.run(f"cd {shlex.quote(str(self.top))}")
            for block in readme.blocks:
                for mark in block.marked("output of"):
                    typed = mark["command"]
                    if not any(one.command.startswith(typed) for one in ran):
                        ran.append(Ran(typed, typed, *self.once(shell, typed)))
        finally:
            shell.close()
        return ran
