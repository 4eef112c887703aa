"""The pages are true: every command is typed and works, and what is quoted or named exists.

A check takes a page and returns complaints. tests/readme.py says how a block is marked as not to
be typed or not to be compared.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import hashlib
import itertools
import os
import posixpath
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from line_profiler import load_stats

from tests import warm
from tests.conftest import stage_environment
from tests.readme import Readme, Typed, Walk, missing_line
from tfworkshop import data
from tfworkshop.stages import ROOT, STAGES

LISTED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
FILES = [name for name in LISTED.stdout.splitlines() if (ROOT / name).exists()]
PAGES = [name for name in FILES if name.endswith(".md")]
YOURS = "train.py"  # the reader's own script, in docs/TAKE_HOME.md
BINARY = (".png", ".gz", ".pb")
every_page = pytest.mark.parametrize("name", PAGES)
Check = Callable[[Readme], list[str]]
Walks = dict[str, "Future[list[Typed]]"]


def load(name: str) -> Readme:
    return Readme(name, (ROOT / name).read_text())


def joined(folder: str | Path, name: str) -> str:
    """A path below ROOT, as git writes it."""
    return posixpath.normpath(posixpath.join(str(folder), name))


# --- links, paths, options, names, quoted code ---


def check_links(page: Readme) -> list[str]:
    complaints = []
    for link in page.links + page.images:
        path, _, anchor = link.partition("#")
        name = joined(page.folder, path) if path else page.name
        if re.match(r"https?:", link):
            continue
        if not (ROOT / name).exists():
            complaints.append(f"({link}): there is no {name}")
        elif anchor:
            target = load(name) if path else page
            if anchor not in target.anchors:
                complaints.append(f"({link}): {name} has no such heading")
    return complaints


def is_made(path: str) -> bool:
    """Whether .gitignore lists it: then a command makes it."""
    patterns = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    return any(fnmatch.fnmatch(part, p) for part in path.split("/") for p in patterns if p)


def check_paths(page: Readme) -> list[str]:
    """What looks like a path exists, or is made by a command."""
    complaints = []
    for word in " ".join(page.spans + page.commands).split():
        path = word.split("=")[-1].strip("'\"(),")
        is_path = re.fullmatch(r"(?!/)[\w./-]+/[\w./-]*|[\w-]+\.(py|md|sh|def|pbs|sbatch)", path)
        name = re.sub(r"^(\.\./|\./)+", "", path).rstrip("/")
        exists = any(f"/{name}/" in f"/{file}/" for file in FILES)
        if is_path and name != YOURS and not exists and not is_made(name):
            complaints.append(f"`{word}`: there is no {path}, and no command makes it")
    return complaints


@functools.cache
def help_of(command: str) -> str:
    """What `./workshop COMMAND --help` prints; nothing if there is no such command."""
    words = [sys.executable, "-m", "tfworkshop", command, "--help"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    return ended.stdout if ended.returncode == 0 else ""


def source_of(script: str, page: Readme) -> str:
    """The script that a command of this page means, or all of that name."""
    here = joined(page.folder, script)
    names = [here] if here in FILES else [name for name in FILES if name.endswith(f"/{script}")]
    return "\n".join((ROOT / name).read_text() for name in names)


def check_options(page: Readme) -> list[str]:
    """Our programs have the options that the page gives them, whether typed by tests or not."""
    complaints = []
    for command in page.commands + page.spans:
        program_and_rest = r"([\w/]+\.py|workshop [a-z]+)\b((?:(?! -- )[^|;)])*)"
        for program, rest in re.findall(program_and_rest, command):
            script = program.endswith(".py")
            known = source_of(program, page) if script else help_of(program.split()[1])
            options = re.findall(r"(?<!\S)--[a-z][\w-]*", rest)
            if not known and not script:
                complaints.append(f"`{command}`: there is no {program}")
            elif known and program != "workshop test":  # its other options are pytest's
                missing = [option for option in options if not re.search(rf"{option}\b", known)]
                complaints += [f"`{command}`: no option {option}" for option in missing]
    return complaints


@functools.cache
def words_in_code() -> frozenset[str]:
    names = [file for file in FILES if not file.endswith((".md", *BINARY))]
    texts = [(ROOT / name).read_text() for name in names if name != "tests/test_docs.py"]
    return frozenset(re.findall(r"\w+", "\n".join(texts)))


def check_names(page: Readme) -> list[str]:
    """Names as our functions have them, and our environment variables, occur in the code."""
    names = [re.fullmatch(r"@?([a-z0-9]+(?:_[a-z0-9]+)+)(\(.*\))?", span) for span in page.spans]
    used = {match[1] for match in names if match}
    used |= set(re.findall(r"\b(?:WORKSHOP|MNIST)_[A-Z_]+", page.text))
    return [f"`{name}`: no code has this name" for name in sorted(used - words_in_code())]


def check_code(page: Readme) -> list[str]:
    """Quoted Python stands in a script of the page's folder, perhaps further to the right."""
    folder = f"{page.folder}/" if page.name[0].isdigit() else "tests/strangers/"
    scripts = [file for file in FILES if file.endswith(".py") and file.startswith(folder)]
    code = "\n".join((ROOT / script).read_text() for script in scripts)
    complaints = []
    for block in page.blocks:
        quoted = textwrap.dedent(block.text)
        indented = [f"\n{textwrap.indent(quoted, ' ' * depth)}\n" for depth in (0, 4, 8, 12, 16)]
        if block.language == "python" and not any(text in code for text in indented):
            complaints.append(f"{block.first}: no script has this code")
    return complaints


def check_diffs(page: Readme) -> list[str]:
    """Quoted hunks stand in the diff between a script of this folder and the one before it."""
    diffs = []
    for before, after in itertools.pairwise(STAGES):
        if after.folder == str(page.folder):
            texts = [stage.script.read_text().splitlines() for stage in (before, after)]
            lines = list(difflib.unified_diff(*texts, lineterm="", n=10_000))[3:]
            diffs.append("\n" + "\n".join(lines) + "\n")
    hunks = [block for block in page.blocks if block.language == "diff"]
    return [
        f"{hunk.first}: this is not in the diff of the scripts"
        for hunk in hunks
        if not any(f"\n{hunk.text}\n" in diff for diff in diffs)
    ]


def check_blocks(page: Readme) -> list[str]:
    """Blocks are closed, and what another test runs, that test exists."""
    complaints = []
    if len(re.findall(r"^ *```", page.text, re.M)) != 2 * len(page.blocks):
        complaints.append("a block is not closed")
    for block in page.blocks:
        for mark in block.marked("run by"):
            file = ROOT / mark["file"]
            tests = file.read_text() if file.exists() else ""
            if f"def {mark['test'] or 'test_'}" not in tests:
                complaints.append(f"{block.first}: there is no test {mark[0]}")
    return complaints


CHECKS: list[Check] = [
    check_links, check_paths, check_options, check_names, check_code, check_diffs, check_blocks
]  # fmt: skip


@every_page
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_page(check: Check, name: str) -> None:
    assert check(load(name)) == []


def test_every_picture_is_shown() -> None:
    shown = {joined(page.folder, image) for page in map(load, PAGES) for image in page.images}
    assert shown == {name for name in FILES if name.endswith(".png")}


GOOD = """\
## First part

[a link](../01_line_profiler/README.md#do-it-yourself), [another](#first-part), `clock.py`,
`train_step` and `logs/off`.

```bash
python train_MNIST.py --steps 3
```
<!-- run by tests/test_docs.py::test_page -->

```python
loss, gradients = compute_gradients(model, images, labels)
```

```diff
+@tf.function
 def train_step(model, optimizer, images, labels):
```
"""


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (check_links, "../01_line_profiler/", "../01_line/"),
        (check_links, "#do-it-yourself", "#do-it"),
        (check_links, "(#first-part)", "(#second-part)"),
        (check_paths, "`clock.py`", "`clocks.py`"),
        (check_paths, "`logs/off`", "`submit/slurm.sh`"),
        (check_options, "--steps", "--stepz"),
        (check_options, "python train_MNIST.py", "../workshop runs"),
        (check_options, "python train_MNIST.py --steps 3", "../workshop bench --size 3"),
        (check_names, "`train_step`", "`train_a_step`"),
        (check_names, "`train_step`", "WORKSHOP_NOTHING"),
        (check_code, "loss, gradients =", "loss, slopes ="),
        (check_diffs, "+@tf.function\n", "+@tf.function()\n"),
        (check_diffs, " def train_step", "+def train_step"),
        (check_blocks, "::test_page", "::test_of_nothing"),
        (check_blocks, "labels):\n```", "labels):\n"),
    ],
)
def test_a_broken_page_is_noticed(check: Check, old: str, new: str) -> None:
    name = "02_tf_function/README.md"
    assert check(Readme(name, GOOD)) == []
    assert old in GOOD
    assert len(check(Readme(name, GOOD.replace(old, new)))) == 1


# --- the commands ---

# What is typed in the place of a command that takes long.
SHORTER = [
    (r"--steps \d{3,}|--steps [3-9]\d", "--steps 24"),  # warm-up and the recorded steps
    (r"(workshop test)$", r"\1 --collect-only -q tests/test_style.py"),  # not from inside itself
    (r"(workshop run)\b.*", r"\1 --steps 20"),  # two calls of ten
    (r"(workshop bench)\b.*", r"\1 --batch-size 64 --repeats 1 --steps 20"),
    (r"(workshop scale .* 1 2).*", r"\1 --repeats 1 --steps 32"),  # two epochs of two ranks
    (r"(horovodrun) -np \d+", r"\1 --gloo -np 2"),  # with MPI, ranks start more slowly
    (r"(horovodrun .*) --steps \d+$", r"\1 --steps 12"),
    (r"(input_pipeline\.py .*)", r"\1 --count 128"),
    (r"--steps \d+ (--precision mixed)", r"--steps 12 --batch-size 8 \1"),  # slow without units
    # All of MNIST: reading it must be what takes longest.
    (r"^(kernprof -l train_MNIST\.py --steps) \d+", r"MNIST_NPZ=$WHOLE_MNIST \1 12"),
]


def shorten(command: str) -> str:
    for long, short in SHORTER:
        command = re.sub(long, short, command)
    return command


@pytest.fixture(scope="module")
def copy(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git has, in a folder of its own, with a small MNIST and an environment to activate."""
    pytest.importorskip("horovod", reason="needs Horovod: ./workshop setup --horovod")
    top = tmp_path_factory.mktemp("walk") / "workshop"
    for name in FILES:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, top / name)
    programs = top / ".venv" / "bin"  # warm.started() adds python
    programs.mkdir(parents=True)
    for name in ("kernprof", "horovodrun", "tensorboard"):
        (programs / name).symlink_to(Path(sys.prefix) / "bin" / name)
    (programs / "activate").write_text(f"export PATH={programs}:$PATH\n")
    (top / "data").mkdir()
    (top / "data" / "mnist.npz").symlink_to(small)
    source = (top / "tfworkshop" / "data.py").read_text()
    with np.load(small) as file:
        for name, array in file.items():
            source = source.replace(data.DIGESTS[name], hashlib.sha256(array).hexdigest())
            source = source.replace(f'"{name}": {data.SHAPES[name]}', f'"{name}": {array.shape}')
    (top / "tfworkshop" / "data.py").write_text(source)
    choose = top / "06_optimized" / "choose.py"  # tests are never quiet: trying once is enough
    source = choose.read_text()
    for long, short in (("0.8 < again / first < 1.25", "True"), ("2560 // batch_size", "20")):
        assert source.count(long) == 1
        source = source.replace(long, short)
    choose.write_text(source)
    return top


@pytest.fixture(scope="module")
def walks(copy: Path, mnist: Path, request: pytest.FixtureRequest) -> Iterator[Walks]:
    """The pages that the selected tests ask for, walked from top to bottom, two at a time."""
    env = stage_environment(PATH=f"{copy}/.venv/bin:{os.environ['PATH']}", WHOLE_MNIST=str(mnist))
    ours = [name for name in env if name.startswith("WORKSHOP_") and name != "WORKSHOP_CACHE"]
    for name in [*ours, "PYTHONPATH", "VIRTUAL_ENV"]:
        env.pop(name, None)
    env["WORKSHOP_PYTHON_ENV"] = "system"  # ./workshop uses the python above and installs nothing
    walk = Walk(copy, env, shorten)
    asked = [item for item in request.session.items if "walks" in item.fixturenames]
    names = {item.callspec.params.get("name") for item in asked if hasattr(item, "callspec")}
    # The longest first; 06 after the ladder, which chooses its switches.
    order = sorted(names & set(PAGES), key=lambda name: -len((ROOT / name).read_text()))
    order.sort(key=lambda name: (name != "docs/RESULTS.md", name.startswith("06")))
    with warm.started(copy / ".venv" / "bin" / "python"), ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(walk.walk, load(name)) for name in order}


def failures(typed: list[Typed]) -> list[str]:
    failed = [one for one in typed if one.status != 0]
    return [f"`{one.typed}` ended with {one.status}:\n{one.output[-800:]}" for one in failed]


def check_output(page: Readme, typed: list[Typed]) -> list[str]:
    """What the page shows, one of its commands prints, but for the figures."""
    complaints = []
    for block in page.blocks:
        if block.language or block.marked("not compared"):
            continue
        missing = {one.typed: missing_line(block.text, one.output) for one in typed}
        if None not in missing.values():
            complaints.append(f"{block.first}: no command of this page prints it: {missing}")
    return complaints


@every_page
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_commands_work_and_print_what_is_shown(name: str, walks: Walks) -> None:
    typed = walks[name].result()
    assert failures(typed) + check_output(load(name), typed) == []


SMALL = """\
```bash
cd 02_tf_function
pwd            # where am I
SOME=1 bash -c 'printf "step 7 took 0.25 s\\nwrote x/y.json\\n"; exit ${FAILS:-0}'
```

```
step 12 took 1.5 s
...
wrote x/y.json
```

```bash
false
true
```
<!-- run by tests/test_docs.py: false -->

```bash
no such program
```
<!-- not run by tests: it does not exist -->
"""


def walk_small(text: str, top: Path) -> list[str]:
    (top / "02_tf_function").mkdir(exist_ok=True)
    page = Readme("README.md", text)
    seconds = 1 if "sleep" in text else 30
    typed = Walk(top, dict(os.environ), seconds=seconds).walk(page)
    return failures(typed) + check_output(page, typed)


def test_a_walk_keeps_the_folder_and_compares_the_output(tmp_path: Path) -> None:
    assert walk_small(SMALL, tmp_path) == []
    assert walk_small(f"{SMALL}\n```\n/home/me/workshop/02_tf_function\n```\n", tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("step 12 took", "Step 12 took", "no command of this page prints it"),
        ("step 12 took 1.5 s", "step 12 took long", "no command of this page prints it"),
        ("wrote x/y.json\n```", "wrote x/y.json\nstep 12 took 1 s\n```", "prints it"),
        ("x/y.json\n```", "x/y.js\n```", "no command of this page prints it"),
        ("cd 02_tf_function", "cd 03_xla", "`cd 03_xla` ended with 1"),
        ("pwd  ", "sleep 60", "ended after 1 s"),
        ("exit ${FAILS:-0}", "exit 3", "ended with 3"),
        ("py: false", "py: true", "`false` ended with 1"),
        ("not run by tests: it", "not run by tests it", "`no such program` ended with 127"),
    ],
)
def test_a_walk_notices(old: str, new: str, complaint: str, tmp_path: Path) -> None:
    assert old in SMALL
    (found,) = walk_small(SMALL.replace(old, new, 1), tmp_path)
    assert complaint in found


# --- what the walk leaves behind ---


def output_of(walks: Walks, page: str, start: str) -> str:
    if page not in walks:
        pytest.skip(f"{page} was not walked")
    return next(one.output for one in walks[page].result() if one.command.startswith(start))


@pytest.mark.slow
def test_git_ignores_what_a_reader_makes(walks: Walks, copy: Path) -> None:
    for walk in walks.values():
        walk.result()
    git = ["git", "-c", "init.defaultBranch=walk", "-C", str(copy)]
    subprocess.run([*git, "init", "-q"], check=True)
    new = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard"], capture_output=True, text=True
    ).stdout.splitlines()
    kept = "docs/measured/"  # results --keep: this device's figures
    assert {name for name in new if not name.startswith(kept)} - set(FILES) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "lowest", "highest"),
    [("train_MNIST.py", 0.35, 1.0), ("train_MNIST_iofix.py", 0.0, 0.25)],
)
def test_where_the_time_goes(
    script: str, lowest: float, highest: float, walks: Walks, copy: Path
) -> None:
    """01's claim: most of it into fetching data before the fix, and not after it."""
    output_of(walks, "01_line_profiler/README.md", f"kernprof -l {script}")
    folder = copy / "01_line_profiler"
    stats = load_stats(str(folder / f"{script}.lprof"))
    (rows,) = [rows for (_, _, name), rows in stats.timings.items() if name == "train_loop"]
    source = (folder / script).read_text().splitlines()
    times = {source[number - 1]: time for number, _, time in rows}
    (fetching,) = [time for line, time in times.items() if "fetch_batch(" in line]
    assert lowest < fetching / sum(times.values()) < highest
