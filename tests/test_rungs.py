"""The ladder's rule: a stage is the one before it plus what its README names."""

from __future__ import annotations

import ast
import difflib
import itertools
import re

import pytest

from tests.conftest import SCRIPTS
from tfworkshop.stages import ROOT

HEADING = "# --- the rest is the same in every stage: skip it on a first reading ---\n"
MOST_NEW_LINES = 66  # a rung is about a screen
ORDER = ["get_dataset", "fetch_batch", "MNISTClassifier", "compute_loss", "forward_pass"]
ORDER += ["train_loop", "train_network"]
FILES = [f"{folder}/{file}" for folder, file in SCRIPTS]
RUNGS = list(itertools.pairwise(FILES))

every_script = pytest.mark.parametrize("path", FILES)
every_rung = pytest.mark.parametrize(("before", "after"), RUNGS, ids=FILES[1:])


def read(path: str) -> str:
    return (ROOT / path).read_text()


def definitions(path: str) -> dict[str, str]:
    """The lesson's top-level definitions and settings by name, other statements by their text.

    Without the docstring, the stage's name and what requests a line profile.
    """
    lesson, _ = read(path).split(HEADING)
    by_name = {}
    for node in ast.parse(lesson).body[1:]:
        text = ast.unparse(node)
        setting = re.match(r"os\.environ\.setdefault\('(\w+)'", text)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            by_name[node.name] = text.replace("@profile\n", "")
        elif setting:
            by_name[setting[1]] = text
        elif "STAGE = " not in text and "line_profiler" not in text:
            by_name[text] = text
    return by_name


def changed(before: str, after: str) -> set[str]:
    old, new = definitions(before), definitions(after)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


@every_rung
def test_the_readme_names_all_that_changed(before: str, after: str) -> None:
    folder, file = after.split("/")
    starts = ("Changed here:", f"Changed in {file}:")
    paragraphs = read(f"{folder}/README.md").split("\n\n")
    (paragraph,) = [text for text in paragraphs if text.startswith(starts)]
    assert set(re.findall(r"`([^`]+)`", paragraph)) == changed(before, after)


@every_rung
def test_a_rung_adds_about_a_screen(before: str, after: str) -> None:
    lines = difflib.ndiff(read(before).splitlines(), read(after).splitlines())
    assert 0 < sum(line.startswith("+ ") for line in lines) <= MOST_NEW_LINES


def test_the_common_part_is_the_same_in_every_stage() -> None:
    (common,) = {read(path).split(HEADING)[1] for path in FILES}
    assert "def main():" in common


@every_script
def test_a_script_keeps_the_published_names_in_their_order(path: str) -> None:
    assert [name for name in definitions(path) if name in ORDER] == ORDER


@every_script
def test_a_script_imports_nothing_of_the_repository(path: str) -> None:
    own = {entry.stem for entry in [*ROOT.iterdir(), *(ROOT / path).parent.iterdir()]}
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module.split(".")[0] not in own
        elif isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & own


def has_horovod_comment(lines: list[str], number: int) -> bool:
    """On this line or up to two above, or on the line that opens the block it stands in."""
    indent = len(lines[number]) - len(lines[number].lstrip())
    opening = lines[number]
    for line in reversed(lines[:number]):
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            opening = line
            break
    candidates = (lines[number], lines[number - 1], lines[number - 2], opening)
    return any(re.search("#.*Horovod:", line) for line in candidates)


@every_script
def test_what_is_there_for_many_processes_says_so(path: str) -> None:
    lines = read(path).splitlines()
    for number, line in enumerate(lines):
        if "hvd." in line and "import horovod" not in line:
            assert has_horovod_comment(lines, number), line
