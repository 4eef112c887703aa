"""No README can be changed or left behind: what it types runs, what it names and quotes is there.

A check takes a README and gives back complaints; the tests ask for none. readme.py says how a
block is marked as not to be run, or as printed by what. At the end every damage is tried.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gzip
import hashlib
import importlib
import inspect
import io
import json
import os
import posixpath
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from line_profiler import load_stats
from PIL import Image

from tests import warm
from tests.conftest import CACHE, stage_environment
from tests.readme import Block, Ran, Readme, Walk, simple_commands
from tests.test_equality import NEIGHBOURS
from tfworkshop import commands, data, machine
from tfworkshop.ladder import bench, results, scale, table
from tfworkshop.mysteries import picture
from tfworkshop.report import screenshots
from tfworkshop.stages import ROOT, STAGES, choose
from tfworkshop.terminal import number


def tracked(*patterns: str) -> list[str]:
    git = ["git", "-C", str(ROOT), "ls-files", "-z", *patterns]
    listed = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


def joined(folder: str, name: str) -> str:
    """A name as git writes it."""
    return posixpath.normpath(posixpath.join(folder, name))


def load(name: str) -> Readme:
    return Readme(name, (ROOT / name).read_text())


FILES = tracked()
NAMES = [name for name in FILES if name.endswith(".md")]
every_readme = pytest.mark.parametrize("name", NAMES)
Walked = dict[str, "Future[list[Ran]]"]

# What is typed in the place of a command that takes long.
STEPS = 24  # warm-up and the default window, or two calls of ten and a shorter one
SHORTER = [
    (r"(workshop test)$", r"\1 --collect-only -q tests/test_style.py"),  # not from inside itself
    (r"(workshop run)\b.*", r"\1 --steps 20"),  # two calls of ten
    (r"(workshop bench)\b.*", r"\1 --batch-size 64 --repeats 1 --steps 20"),
    (r"(workshop scale .* 1 2).*", r"\1 --repeats 1 --steps 32"),  # two epochs of two ranks
    (r"(horovodrun) -np \d+", r"\1 --gloo -np 2"),  # with MPI too, ranks start more slowly
    (r"(horovodrun .*) --steps \d+$", r"\1 --steps 12"),
    (r"(input_pipeline\.py .*)", r"\1 --count 128"),
    (r"--steps \d+ (--precision mixed)", r"--steps 12 --batch-size 8 \1"),  # slow without units
    # All of MNIST: reading it must be what takes longest.
    (r"^(kernprof -l train_MNIST\.py --steps) \d+", r"MNIST_NPZ=$WHOLE_MNIST \1 12"),
]


def shorter(command: str) -> str:
    for long, short in SHORTER:
        command = re.sub(long, short, command)
    most = 32 if "workshop scale" in command else STEPS
    return re.sub(r"(?<=--steps )\d+", lambda found: str(min(int(found[0]), most)), command)


# --- 1. the commands ---


@pytest.fixture(scope="module")
def copy(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git has, in a folder of its own, with this environment; the first images are all."""
    if not (Path(sys.prefix) / "workshop.json").exists():
        pytest.skip("the READMEs are walked in the environment that ./workshop makes")
    pytest.importorskip("horovod", reason="needs Horovod: ./workshop setup --horovod")
    top = tmp_path_factory.mktemp("walk") / "workshop"
    for name in FILES:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, top / name)
    (top / ".venv" / "bin").mkdir(parents=True)
    here = Path(sys.prefix).resolve()
    for path in [*here.iterdir(), *(here / "bin").iterdir()]:
        if path.name not in ("bin", "python", "python3"):  # walks() makes its own
            (top / ".venv" / path.relative_to(here)).symlink_to(path)
    (top / "data").mkdir()
    (top / "data" / "mnist.npz").symlink_to(small)
    source = (top / "tfworkshop" / "data.py").read_text()
    with np.load(small) as file:
        for name, array in file.items():
            source = source.replace(data.DIGESTS[name], hashlib.sha256(array).hexdigest())
            source = source.replace(f'"{name}": {data.SHAPES[name]}', f'"{name}": {array.shape}')
    (top / "tfworkshop" / "data.py").write_text(source)
    choose = top / "06_optimized" / "choose.py"  # here it is never quiet: once is enough
    text = choose.read_text()
    for old, new in (("not 0.8 <", "not 0.01 <"), ("< 1.25", "< 100"), ("2560 //", "1280 //")):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    choose.write_text(text)
    return top


@pytest.fixture(scope="module")
def walks(copy: Path, mnist: Path, request: pytest.FixtureRequest) -> Iterator[Walked]:
    """Every README that a selected test is about, walked from top to bottom, two at a time."""
    path = os.pathsep.join([f"{copy}/.venv/bin", os.environ["PATH"]])
    env = stage_environment(PATH=path, WHOLE_MNIST=str(mnist))
    others = [n for n in env if n.startswith("WORKSHOP_") and n != "WORKSHOP_CACHE"]
    for name in [*others, "PYTHONPATH", "VIRTUAL_ENV"]:
        env.pop(name, None)
    walk = Walk(copy, env)
    wanted = {
        item.callspec.params.get("name")
        for item in request.session.items
        if "walks" in item.fixturenames and hasattr(item, "callspec")
    }
    with warm.started(copy / ".venv" / "bin" / "python"), ThreadPoolExecutor(2) as pool:
        names = sorted(wanted & set(NAMES), key=lambda n: -len((ROOT / n).read_text()))
        # The longest first. The ladder chooses for 06, and after that this is kept.
        names.sort(key=lambda n: (n != "RESULTS.md", n.startswith("06")))
        yield {name: pool.submit(walk.walk, load(name), shorter) for name in names}


def check_runs(readme: Readme, ran: list[Ran]) -> list[str]:
    complaints = []
    for one in ran:
        if one.status != 0:
            end = "\n".join(one.output.strip().splitlines()[-8:])
            complaints.append(
                f"{readme.name}: `{one.command}` (typed: {one.typed}) ended with {one.status}. "
                f"Fix it, or mark its block (readme.py says how):\n{end}"
            )
    return complaints


@every_readme
@pytest.mark.timeout(1800)
def test_every_command_runs(name: str, walks: Walked) -> None:
    assert check_runs(load(name), walks[name].result()) == []


def check_marks(readme: Readme) -> list[str]:
    """Every comment is a mark of a kind that its block can have."""
    where = readme.name
    complaints = [
        f"{where}: <!-- {text} --> is no mark, or stands under no block: see tests/readme.py"
        for text in readme.stray
    ]
    if len(re.findall(r"^ *```", readme.text, re.M)) != 2 * len(readme.blocks):
        complaints.append(f"{where}: a block is not closed, or its first line is not ```LANGUAGE")
    for block in readme.blocks:
        kinds = {"bash": {"not run", "run by"}, "": {"output of", "not compared"}}
        for kind in {kind for kind, _ in block.marks} - kinds.get(block.language, set()):
            complaints.append(f"{where}: {block.first}: '{kind}' is for another kind of block")
        if block.language not in ("bash", "", "python", "diff"):
            complaints.append(f"{where}: {block.first}: no test knows ```{block.language}")
        for mark in block.marked("run by"):
            file, test = mark["test"].split("::")
            code = (ROOT / file).read_text() if (ROOT / file).exists() else ""
            if not re.search(rf"^def {test}\(", code, re.M):
                complaints.append(f"{where}: {block.first}: there is no {mark['test']}")
            if not any(c.startswith(mark["words"] or "") for c in block.commands):
                complaints.append(f"{where}: {block.first}: no command starts {mark['words']}")
    return complaints


@every_readme
def test_marks(name: str) -> None:
    assert check_marks(load(name)) == []


def check_folders(readme: Readme) -> list[str]:
    """With its exercise and without it: the reader is where the next command works."""
    complaints = []
    for skipped in ("workshop exercise", "nothing"):
        here = ROOT
        for block in readme.blocks:
            if skipped in block.text or block.marked("not run"):
                continue
            here = ROOT if "top folder" in block.above else here
            for command in block.commands:
                words = command.split()
                named = words[1:2] if words[0] == "cd" else re.findall(r"^\S*workshop\b", command)
                named += [word for word in words if re.fullmatch(r"\w+\.py", word)]
                if not all((here / name).exists() for name in named):
                    complaints.append(f"{readme.name}: `{command}`, typed in {here.name}, fails")
                elif words[0] == "cd":
                    here = (here / words[1]).resolve()
    return complaints


@pytest.mark.parametrize("name", [n for n in NAMES if n[:2].isdigit()])
def test_a_page_works_with_and_without_its_exercise(name: str) -> None:
    assert check_folders(load(name)) == []


# --- 2. the output has the shape that is shown ---

NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)*(?:e[+-]?\d+)?"
UNIT = r"(?:ns|us|µs|ms|s|kB|KiB|MiB|GiB)"
# What differs from machine to machine and from run to run, and what may stand in its place.
VARIES = [
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"),
    (r"\d{4}(?:_\d\d){5}, vm,", r"\d{4}(?:_\d\d){5}, \S+,"),
    (r"\d{4}(?:_\d\d){5}", r"\d{4}(?:_\d\d){5}"),
    (r"(?<=^device {10})\S.*", r"\S.*"),
    (r"(?<=^precision {7})\S+|(?<=^xla {13})\S+", r"\S+"),
    (r"(?:<repository>|/home/me/workshop)(?=/)", r"\S+"),
    (r"\{.*\}", r"\{.*\}"),
    (r"\.\.\.", r".*"),
    (r"#{5,}[.I]*", r"[#.I]+"),
    (rf"(?<![\w.]){NUMBER} {UNIT}\b", rf"{NUMBER} {UNIT}"),
    (rf"(?<![\w.]){NUMBER}", NUMBER),
    (r"\s+", r"\s+"),
]
ANY = re.compile("|".join(f"(?P<v{i}>{shown})" for i, (shown, _) in enumerate(VARIES)))
RULE = re.compile(r"\s*[─━═]{10,}[─━═\s]*")


def line_pattern(line: str) -> str:
    parts, end = [], 0
    for found in ANY.finditer(line):
        parts += [re.escape(line[end : found.start()]), VARIES[int(found.lastgroup[1:])][1]]
        end = found.end()
    return "".join([*parts, re.escape(line[end:])])


def row_pattern(line: str) -> str:
    """A row of a table: figures where figures are, and any words where words are."""
    cells = re.split(r"\s{2,}", line.strip())
    figure = re.compile(rf"{NUMBER}(?: (?:%|{UNIT}))?")
    return r"\s{2,}".join(figure.pattern if figure.fullmatch(cell) else r"\S+" for cell in cells)


def patterns(shown: str) -> list[str]:
    """One for each line; a row under a ruled header is known by its columns."""
    found, in_table = [], False
    for line in shown.split("\n"):
        in_table = bool(RULE.fullmatch(line)) or (in_table and bool(line.strip()))
        if line.strip() in ("", "..."):
            continue
        ruled = RULE.fullmatch(line)
        found.append(
            r"[─━═\s]+" if ruled else row_pattern(line) if in_table else line_pattern(line.strip())
        )
    return found


def missing_line(shown: str, printed: str) -> str | None:
    """The first line shown whose like is not in the output, after those above it."""
    plain = re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", printed)
    plain = re.sub(r"(\.py):\d+", r"\1", plain)  # READMEs name no line numbers
    lines = iter(plain.splitlines())
    rows = [line for line in shown.split("\n") if line.strip() not in ("", "...")]
    for row, pattern in zip(rows, patterns(shown)):
        wanted = re.compile(rf"(?:^|.*\s){pattern}\s*")
        if not any(wanted.fullmatch(line) for line in lines):
            return row
    return None


def source_of(readme: Readme, block: Block, ran: list[Ran]) -> Ran | None:
    """The run that an output block shows."""
    if block.marked("output of"):
        start = block.marked("output of")[0]["command"]
    elif block.figure.startswith("log "):
        start = f"python {choose(block.figure.split()[1:])[-1].file}"
    elif block.figure == "tried":
        return next((one for one in ran if "choose.py" in one.command), None)
    elif block.figure:
        start = {"text clock.txt": "python clock.py"}[block.figure]
    else:
        above = readme.blocks[: readme.blocks.index(block)]
        typed = [c for b in above for c in b.commands if b.runs(c)]
        start = typed[-1] if typed else "\0"
    return next((one for one in ran if one.command.startswith(start)), None)


def check_output(readme: Readme, ran: list[Ran]) -> list[str]:
    complaints = []
    for block in readme.blocks:
        if block.language or block.marked("not compared"):
            continue
        where = f"{readme.name}: {block.first}"
        one = source_of(readme, block, ran)
        if one is None:
            complaints.append(f"{where}: which command printed it? <!-- output of: COMMAND -->")
            continue
        shown = block.text
        if block.figure == "tried":  # on a busy machine a way may come too late
            shown = re.sub(r"\d\S* img/s$", "...", shown, flags=re.M)
        printed = re.sub(r"^\[1,(\d+)\]<", r"[\1]<", one.output, flags=re.M)  # Open MPI's form
        line = missing_line(shown, printed)
        if line is not None:
            complaints.append(
                f"{where}: `{one.typed}` prints no line like this (after those above it): {line}"
            )
    return complaints


@every_readme
@pytest.mark.timeout(1800)
def test_output_has_the_shape_that_is_shown(name: str, walks: Walked) -> None:
    assert check_output(load(name), walks[name].result()) == []


def cells_shape(markdown: str) -> list[list[str]]:
    """A Markdown table with # for figures; the spread of repeats is left out."""
    rows = [
        line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("| ")
    ]
    figure = rf"(?:{NUMBER}(?:x|%| %)?|-)"
    return [
        [re.sub(rf"^{figure}(?: \(.*\)| to {NUMBER})?$", "#", cell) for cell in row] for row in rows
    ]


def shown_tables(text: str) -> dict[str, list[list[str]]]:
    """The Markdown tables that ./workshop results --write made, by what they are."""
    figures = {found[2]: found[3] for found in results.MARK.finditer(text)}
    tables = {what: body for what, body in figures.items() if "\n| " in body}
    tables.pop("devices", None)  # the same tables of other devices, as many as there are
    return {what: cells_shape(body) for what, body in tables.items()}


def any_threads(text: str) -> str:
    """How many there are is the machine's."""
    return re.sub(r"\d+ x \d+ thread", "1 x 1 thread", text)


def check_tables(readme: Readme, made: dict[str, list[list[str]]]) -> list[str]:
    return [
        f"{readme.name}: the table '{what}' is made in another shape today: {made.get(what)}"
        for what, shape in shown_tables(readme.text).items()
        if made.get(what) != shape
    ]


@pytest.fixture(scope="module")
def tables_now(walks: Walked, copy: Path) -> dict[str, list[list[str]]]:
    """The tables as the commands make them today; kept is only which ways to train there are."""
    if "README.md" not in walks:
        pytest.skip("README.md was not walked")
    walks["README.md"].result()
    points = scale.plan([1, 2], cores=2, gpu=False)
    for point in points:
        point.speeds.append(1.0)
    shape = any_threads(scale.markdown(scale.as_rows(points)))
    made = dict.fromkeys(("scale", "scale 64", "scale 1024"), shape)
    made["table"] = (copy / "results" / "ladder.md").read_text()
    for size in (64, 1):
        kept = results.read(results.quoted(), f"bench_{size}.json")["rows"]
        kept = {row["name"] for row in kept}
        # A fit in 16 bit is a row only where 06 chose 16 bit.
        names = [e.name for e in bench.entries() if not e.sixteen_bit or e.name in kept]
        rows = [{"name": name, "img_per_s": 1.0, "repeats": [1.0]} for name in names]
        made[f"bench {size}"] = bench.markdown({"rows": rows, "batch_size": size})
    return {what: cells_shape(text) for what, text in made.items()}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [n for n in NAMES if shown_tables((ROOT / n).read_text())])
def test_tables_have_the_shape_of_today(name: str, tables_now, walks) -> None:
    readme = Readme(name, any_threads((ROOT / name).read_text()))
    assert check_tables(readme, tables_now) == []


def check_figures(readme: Readme) -> list[str]:
    """As test_results.py asks; here for READMEs of other folders too, and for the damages below."""
    if results.fill(readme.text) == readme.text:
        return []
    return [f"{readme.name}: a figure is not the measured one: ./workshop results --write"]


@every_readme
def test_figures(name: str) -> None:
    assert check_figures(load(name)) == []


def test_git_would_not_see_what_a_reader_makes(walks: Walked, copy: Path) -> None:
    """Walked from top to bottom, the READMEs leave only ignored files, and what they say."""
    for walk in walks.values():
        walk.result()
    git = ["git", "-c", "init.defaultBranch=walk", "-C", str(copy)]
    subprocess.run([*git, "init", "-q"], check=True)
    listed = [*git, "ls-files", "-z", "--others", "--exclude-standard"]
    seen = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    new = {name for name in seen if not name.startswith("measured/")}  # results --keep: this device
    assert new - {"", *FILES} == set()


# --- what the walk leaves behind, looked at closely ---


def typed_in(walks: Walked, name: str, start: str) -> Ran:
    if name not in walks:
        pytest.skip(f"{name} was not walked")
    return next(one for one in walks[name].result() if one.command.startswith(start))


@pytest.fixture(scope="module")
def ladder_run(walks: Walked) -> str:
    """What `./workshop run` printed, all stages, 06's switches chosen."""
    return typed_in(walks, "README.md", "./workshop run").output


def test_run_ends_with_a_table(ladder_run: str) -> None:
    assert re.search(r"02_tf_function +the step is a tf.function +\d+ +[\d.,]+", ladder_run)
    assert re.search(r"06_optimized .*x +[\d.]+x +\d+\.\d +\d+\.\d %", ladder_run)
    assert "real MNIST" in ladder_run and f", {machine.cpu_model()};" in ladder_run
    assert max(map(len, ladder_run.splitlines())) <= 100


def test_plain_lines_where_there_is_no_terminal(ladder_run: str) -> None:
    assert "\x1b" not in ladder_run and "\r" not in ladder_run
    assert re.search(r"^02_tf_function +[\d.,]+ img/s +\(\d+ s\)$", ladder_run, re.M)


def test_06_trains_with_what_choose_found(ladder_run: str, copy: Path) -> None:
    row = json.loads((copy / "results" / "ladder.json").read_text())["rows"][-1]
    tried = row["tried"]
    assert all(line in ladder_run for line in tried["lines"]) and len(tried["lines"]) >= 3
    words = dict(zip(*[iter(tried["switches"].split())] * 2))
    assert words == {
        "--xla": row["xla"],
        "--precision": row["precision"],
        "--steps-per-call": str(row["steps_per_call"]),
    }


def test_run_writes_json_markdown_and_chart(ladder_run: str, copy: Path) -> None:
    folder = copy / "results"
    ladder = json.loads((folder / "ladder.json").read_text())
    assert [row["stage"] for row in ladder["rows"]] == [stage.name for stage in STAGES]
    assert ladder["ceiling"]["float32"] > 1e9
    for row in ladder["rows"]:
        assert len(row["log"]) == 3
        assert number(row["img_per_s"]) in (folder / "ladder.md").read_text()
    with Image.open(folder / "ladder.png") as chart:
        assert chart.width > 800 and chart.height > 200


def test_bench_for_real(walks: Walked, copy: Path) -> None:
    said = typed_in(walks, "RESULTS.md", "./workshop bench").output
    found = json.loads((copy / "results" / "bench_64.json").read_text())
    assert [row["name"] for row in found["rows"]][:2] == ["06_optimized", "02_tf_function"]
    assert len(found["rows"]) >= 6 and all(row["img_per_s"] > 0 for row in found["rows"])
    assert re.search(r"batch 64: 06 is [\d.]+x the best model.fit", said)
    assert max(map(len, said.splitlines())) <= 100


def test_scale_for_real(walks: Walked, copy: Path) -> None:
    said = typed_in(walks, "RESULTS.md", "./workshop scale").output
    rows = json.loads((copy / "results" / "scale_06_64.json").read_text())["points"]
    kinds = [(row["ranks"], row["exchange"]) for row in rows]
    assert kinds[-3:] == [(1, True), (2, False), (2, True)]
    assert all(row["img_per_s"] > 0 for row in rows)
    assert re.search(r"2 x \d+ thread", said)
    with Image.open(copy / "results" / "scale_06_64.png") as chart:
        assert chart.width > 600


def test_choose_prints_the_fastest_and_keeps_all(walks: Walked) -> None:
    said = typed_in(walks, "06_optimized/README.md", "python choose.py").output
    chosen, *tried = said.splitlines()
    found = re.findall(r"^(--xla .*\d) +([\d,]+) img/s$", "\n".join(tried), re.M)
    speeds = {way: int(speed.replace(",", "")) for way, speed in found}
    assert len(re.findall("^--xla", said, re.M)) >= 4  # three ways, and the chosen one again
    assert speeds[chosen] >= 0.96 * max(speeds.values())
    if "too noisy to keep" in said:
        return
    kept = json.loads((Path(CACHE) / "06_choices.json").read_text())
    kept = {key.split(": ")[1]: speed for key, speed in kept.items() if ", batch 64, " in key}
    assert all(isinstance(kept[way], float) for way in speeds)


@pytest.mark.parametrize(
    ("file", "lowest", "highest"),
    [("train_MNIST.py", 0.35, 1.0), ("train_MNIST_iofix.py", 0.0, 0.25)],
)
def test_where_the_time_goes(
    file: str, lowest: float, highest: float, walks: Walked, copy: Path
) -> None:
    """Stage 01's claim: most of it into fetching data before the fix, and not after it."""
    typed_in(walks, "01_line_profiler/README.md", f"kernprof -l {file}")
    folder = copy / "01_line_profiler"
    stats = load_stats(str(folder / f"{file}.lprof"))
    (lines,) = [rows for (_, _, name), rows in stats.timings.items() if name == "train_loop"]
    source = (folder / file).read_text().splitlines()
    times = {source[number - 1]: spent for number, _, spent in lines}
    (fetching,) = [spent for text, spent in times.items() if "fetch_batch(" in text]
    assert lowest < fetching / sum(times.values()) < highest


# --- 3. paths, links, anchors, flags ---


def check_links(readme: Readme) -> list[str]:
    complaints = []
    for target in [*readme.links, *readme.images]:
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        name = joined(readme.folder, path) if path else readme.name
        if name not in FILES and not any(file.startswith(f"{name}/") for file in FILES):
            complaints.append(f"{readme.name}: [..]({target}): there is no {name}")
        elif anchor:
            to = readme if not path else load(name)
            if anchor not in to.anchors:
                complaints.append(f"{readme.name}: [..]({target}): no such heading in {to.name}")
    return complaints


@every_readme
def test_links(name: str) -> None:
    assert check_links(load(name)) == []


# Flags of programs that need not be on this machine, as their manuals have them.
FOREIGN = {
    "apptainer": "--fakeroot --nv -B --ignore-fakeroot-command",
    "bash": "--norc",
    "grep": "-h -o",
    "mkdir": "-p",
    "pip": "--no-deps",
    "qstat": "-u",
    "qsub": "-A -I -l -n -q -v --env",
    "sbatch": "-A -N -t --constraint --partition --qos",
    "scp": "-r",
    "shifter": "--image --module",
    "squeue": "--me",
    "srun": "-A -C -N -c -n -t --gpus-per-node --mpi --pty --qos",
    "ssh": "-J -L",
    "tail": "-f",
    # of a build, and of XLA
    "configure": "--disable-wrapper-rpath",
    "TF_XLA_FLAGS": "--tf_xla_auto_jit",
    **dict.fromkeys(("cd", "diff", "export", "git", "module", "mpiexec", "mpirun"), ""),
    **dict.fromkeys(("nvidia-smi", "qdel", "scancel", "singularity", "source", "tee"), ""),
}
OURS = ("python", "workshop", "horovodrun", "kernprof", "tensorboard")
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


@functools.cache
def flags_of(*program: str) -> frozenset[str]:
    """What the program's own --help lists."""
    if program[0] in FOREIGN:
        return frozenset(FOREIGN[program[0]].split())
    if program[0] == "workshop":
        text = asked([sys.executable, str(ROOT / "workshop"), *program[1:], "--help"])
    elif program[0] == "script":
        text = help_of(ROOT / program[1])
    elif program[0] == "python -m":
        text = asked([sys.executable, "-m", program[1], "--help"])
    else:
        text = asked([str(Path(sys.executable).parent / program[0]), "--help"])
    return frozenset([*FLAG.findall(text), "-h", "--help"])


def asked(command: list[str]) -> str:
    process = subprocess.run(command, capture_output=True, text=True, env=stage_environment())
    assert process.returncode == 0, f"{command}: {process.stderr[-500:]}"
    return process.stdout + process.stderr


def help_of(script: Path) -> str:
    """Run in here, which spares the start of TensorFlow."""
    out, handler = io.StringIO(), signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), "--help"])
        patch.syspath_prepend(script.parent)
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            runpy.run_path(str(script), run_name="__main__")
    signal.signal(signal.SIGINT, handler)
    sys.modules.pop("train_MNIST", None)  # clock.py imports it: the next may mean another folder's
    return out.getvalue()


def stand_in(script: str) -> str:
    """For scripts that are made, or the reader's own: one of git's with the same options."""
    made = re.sub(r"^my/mystery_\d/", "04_tf_profiler/", script)
    return "tests/strangers/loop.py" if script == "train.py" else made


def programs(words: list[str], folder: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The programs of a command, one may start the next, each with the words that are its own."""
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    if not words:
        return
    first, rest = words[0].split("/")[-1], words[1:]
    job = next((i for i, word in enumerate(rest) if word.startswith("submit/")), None)
    if job is not None:
        yield (first,), rest[:job]
        variables = dict(re.findall(r"(STAGE|OPTIONS)=([^,]*)", " ".join(rest[:job])))
        more = rest[job + 1 :] or [
            variables.get("STAGE", ""),
            *variables.get("OPTIONS", "").split(),
        ]
        if more[0] == "all":
            yield ("workshop", "run"), more[1:]
        elif more[0]:
            named = [f"{s.folder}/{s.file}" for s in STAGES if s.number == more[0]]
            script = [more[0], *named][-1]  # of 06, the second rung
            yield ("script", script), more[1:]
    elif first == "workshop":
        yield ("workshop", *rest[:1]), rest[1:]
    elif first in ("python", "python3") and rest[:1] == ["-m"]:
        yield ("python -m", rest[1]), rest[2:]
    elif first in ("python", "python3") and rest and rest[0] != "-c":
        yield ("script", stand_in(joined(folder, rest[0]))), rest[1:]
    elif first == "kernprof":
        at = next((i for i, word in enumerate(rest) if word.endswith(".py")), len(rest))
        yield (first,), rest[:at]
        yield from programs(["python", *rest[at:]] if rest[at:] else [], folder)
    elif first in ("horovodrun", "apptainer"):
        starts = re.compile(r"python3?" if first == "horovodrun" else r".*\.sif")
        at = next((i for i, word in enumerate(rest) if starts.fullmatch(word)), len(rest))
        yield (first,), rest[:at]
        inner = rest[at:] if first == "horovodrun" else rest[at + 1 :]
        if rest[:1] == ["build"]:
            return
        if inner and inner[0].endswith(".py"):  # apptainer run hands it to Python
            inner, folder = ["python", *inner], ""
        yield from programs(inner, folder)
    else:
        yield (first,), rest


def wrong_words(program: tuple[str, ...], words: list[str]) -> Iterator[str]:
    """What this program would not understand."""
    if program[0] == "workshop" and program[1:] and program[1] not in commands.NAMES:
        yield f"./workshop has no {program[1]}"
    elif program[0] == "script" and program[1] not in FILES:
        yield f"there is no {program[1]}"
    elif program[0] not in (*FOREIGN, *OURS, "script", "python -m"):
        yield f"no test knows the flags of {program[0]}: add them to FOREIGN"
    elif program == ("workshop", "test"):
        return  # pytest's
    else:
        given = [word.split("=")[0] for word in words if FLAG.match(word)]
        known = flags_of(*program) if given else frozenset()
        for flag in given:
            letters = {f"-{letter}" for letter in flag[1:]}  # -tmz
            if flag not in known and not (flag[1] != "-" and letters <= known):
                yield f"{' '.join(program)} has no {flag}"


def typed(readme: Readme) -> Iterator[tuple[str, str, str]]:
    """Every command, of blocks and of the text: (what it stands in, command, folder it is for)."""
    folder = ""
    for block in readme.blocks:
        if "top folder" in block.above:
            folder = ""
        for command in block.commands:
            yield block.first, command, folder
            moved = re.fullmatch(r"cd (\S+)", command)
            if moved and not block.marked("not run"):
                folder = joined(folder, moved[1])
    for span in readme.spans:
        plain = re.sub(r"^(\w+=\S+ )+", "", span)
        if re.match(r"\S*workshop |[\w-]+ ", plain) and looks_typed(plain):
            yield f"`{span}`", span.removesuffix(" ..."), readme.folder


def looks_typed(span: str) -> bool:
    first = span.split()[0].split("/")[-1]
    return first in (*OURS, *FOREIGN, "python3") and first not in ("configure", "TF_XLA_FLAGS")


def check_flags(readme: Readme) -> list[str]:
    complaints = []
    stage = re.match(r"\d", readme.folder)
    used: set[tuple[str, ...]] = set() if stage else {("horovodrun",)}  # a page about all of it
    for one in STAGES:
        used |= (
            {("script", f"{one.folder}/{one.file}")} if readme.folder in ("", one.folder) else set()
        )
    for where, command, folder in typed(readme):
        for words in simple_commands(command):
            if words[0] == "cd":
                folder = joined(folder, words[1])
            for program, own in programs(words, folder):
                wrong = list(wrong_words(program, own))
                complaints += [f"{readme.name}: {where}: {what}" for what in wrong]
                used |= set() if wrong else {program}
    alone = [span for span in readme.spans if span.startswith("-")]
    if alone:  # it may be of any program that is named here, or of the schedulers
        known = set(" ".join(FOREIGN.values()).split()).union(
            *(flags_of(*p) for p in used if p[0] in OURS or p[1:])
        )
    for span in alone:
        for flag in (word.split("=")[0] for word in span.split() if FLAG.match(word)):
            if flag not in known:
                complaints.append(f"{readme.name}: `{span}`: no program named here has {flag}")
    return complaints


@every_readme
def test_flags_and_subcommands(name: str) -> None:
    assert check_flags(load(name)) == []


FILE_ENDINGS = "py md txt sh json gz png html def pbs sbatch cobalt npz lprof sif out output css js"
A_PATH = re.compile(
    rf"[\w.~<>$*+-]*/[\w.~<>$*+/-]*|[\w.<>-]+\.(?:{FILE_ENDINGS.replace(' ', '|')})"
)
# Named, but not of this repository: of the published ones, of Argonne's, and in a job's results.
ELSEWHERE = {
    "train.py",  # the reader's
    "train.py.lprof",
    "containers/datascience/tensorflow/Polaris",
    "docs/polaris/applications-and-libraries/libraries/nccl.md",
    "ladder.md",
    "ladder.png",
}


@functools.cache
def ignored(name: str) -> bool:
    """Git ignores what the commands make."""
    first = name.split("/")[0]  # git does not look behind a symbolic link, which .venv may be
    git = ["git", "-C", str(ROOT), "check-ignore", "-q", "--no-index"]
    asked = [name] if not (ROOT / first).is_symlink() else [first]
    return first != ".." and subprocess.run([*git, *asked]).returncode == 0


def check_paths(readme: Readme) -> list[str]:
    words = [(f"`{span}`", span, readme.folder) for span in readme.spans]
    for where, command, folder in typed(readme):
        for one in simple_commands(command):
            folder = joined(folder, one[1]) if one[0] == "cd" else folder
            words += [(where, word.split("=")[-1], folder) for word in one]
    complaints = []
    for where, word, folder in words:
        if not A_PATH.fullmatch(word) or word in ELSEWHERE or re.match(r"[/~]|\.\w+$", word):
            continue
        plain = re.sub(r"<\w+>", "1", word.replace("$PWD/", ""))
        before = [a.split("/")[0] for a, b, _ in NEIGHBOURS if b.startswith(f"{readme.folder}/")]
        names = {joined(at, plain) for at in (folder, readme.folder, *before, "")}
        there = (n in FILES or any(f.startswith(f"{n}/") for f in FILES) or n == "." for n in names)
        if not any(there) and not any(ignored(n) or ignored(f"{n}/x") for n in names):
            complaints.append(f"{readme.name}: {where}: there is no {word}, and nothing makes it")
    return complaints


@every_readme
def test_paths(name: str) -> None:
    assert check_paths(load(name)) == []


@functools.cache
def code_text() -> str:
    """All that runs, without tests and texts."""
    files = [f for f in FILES if not f.endswith((".md", ".json", ".png", ".pb", ".gz"))]
    return "\n".join((ROOT / f).read_text() for f in files if not f.startswith("tests/"))


def check_variables(readme: Readme) -> list[str]:
    """Ours are read somewhere."""
    read = r"(?:environ\S*\(?[\"']|(?:environ|numbers)\.get\([\"']|\$\{{?){}\b"
    return [
        f"{readme.name}: {name}: nothing reads it"
        for name in sorted(set(re.findall(r"\b(?:WORKSHOP_[A-Z_]+|MNIST_[A-Z_]+)\b", readme.text)))
        if not re.search(read.format(name), code_text())
    ]


@every_readme
def test_variables(name: str) -> None:
    assert check_variables(load(name)) == []


# --- 4. quoted code and diffs ---


def stands_in(quoted: list[str], text: str, indent: str = "") -> bool:
    """Whole lines, one under the other; with an indent, all of them may stand further right."""
    first, *rest = (re.escape(line.rstrip()) for line in quoted)
    lines = [
        f"^(?P<indent>{indent}){first}",
        *(f"(?P=indent){line}" if line else "" for line in rest),
    ]
    return bool(re.search(r"[ ]*\n".join(lines) + r"[ ]*$", text, re.M))


def check_code(readme: Readme) -> list[str]:
    scripts = [f for f in FILES if f.endswith(".py") and f.startswith(readme.folder)]
    texts = [(ROOT / file).read_text() for file in scripts]
    return [
        f"{readme.name}: {block.first}: no script of this folder has this code: quote it again"
        for block in readme.blocks
        if block.language == "python"
        and not any(stands_in(block.text.split("\n"), text, " *") for text in texts)
    ]


def runs_of(lines: list[str], sign: str) -> list[list[str]]:
    """The neighbouring lines of a hunk that carry this sign."""
    found: list[list[str]] = [[]]
    for line in lines:
        found[-1].append(line[1:]) if line[:1] == sign else found.append([])
    return [run for run in found if run]


def wrong_hunk(hunk: str, before: str, after: str) -> str | None:
    """Why it is no hunk of the difference between two texts."""
    lines = [line or " " for line in hunk.split("\n")]
    if any(line[0] not in "+- " for line in lines):
        return "a line starts with neither +, - nor a space"
    if not any(line[0] in "+-" for line in lines):
        return "it changes nothing"
    for sign, text, other, name in (("-", before, after, "old"), ("+", after, before, "new")):
        side = [line[1:] for line in lines if line[0] in (sign, " ")]
        if side and not stands_in(side, text):
            return f"its {sign} and plain lines do not stand together in the {name} script"
        for run in runs_of(lines, sign):
            if stands_in(run, other):
                return f"its {sign} lines stand in both scripts: {run[0].strip()}"
    return None


def check_diffs(readme: Readme) -> list[str]:
    pairs = [
        (a, b) for a, b, _ in NEIGHBOURS if b.split("/")[0] == readme.folder or not readme.folder
    ]
    texts = [((ROOT / a).read_text(), (ROOT / b).read_text()) for a, b in pairs]
    complaints = []
    for block in readme.blocks:
        if block.language != "diff":
            continue
        reasons = [wrong_hunk(block.text, *pair) for pair in texts]
        if None not in reasons:
            why = reasons[-1] if reasons else "no stage stands in this folder"
            complaints.append(f"{readme.name}: {block.first}: not the real diff: {why}")
    return complaints


@every_readme
def test_quoted_code(name: str) -> None:
    assert check_code(load(name)) == []


@every_readme
def test_quoted_diffs(name: str) -> None:
    assert check_diffs(load(name)) == []


# --- 5. names ---

PACKAGES = {"tf": "tensorflow", "keras": "keras", "np": "numpy", "hvd": "horovod.tensorflow"}
# Where a name that stands alone may come from.
AT_HOME = (
    "keras",
    "keras.layers",
    "keras.callbacks",
    "keras.optimizers",
    "keras.optimizers.LossScaleOptimizer",
    "keras.mixed_precision",
    "keras.Model",
    "tf",
    "tf.data",
    "tf.data.Dataset",
    "tf.profiler.experimental",
    "tf.raw_ops",  # as profiles name operations
)
# Whose parameters the text names.
PARAMETERS_OF = (
    "keras.callbacks.TensorBoard",
    "tf.data.Dataset.map",
    "hvd.DistributedGradientTape",
)
# Names of other programs' making, and mistakes that are quoted as such.
OTHERS = {
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
    "NVreg_RestrictProfilingToAdminUsers",
    "NCCL_ALLREDUCE",
    "TF_ENABLE_ONEDNN_OPTS",
    "SlurmdTimeout",
    "MEMCPY",
    "SINGULARITYENV_",
    "SINGULARITY_CACHEDIR",
    "SINGULARITY_TMPDIR",
    "APPTAINER_CACHEDIR",
    "APPTAINER_TMPDIR",
    "01advanced_profiling_deep_learning",
    "tf_profiler",
    "tf_data",
    "logs_dir",
    "method",
    "lr",
    "libmpi.so.40",
    "libxalt_init.so",
    "HOROVOD_WITH_MPI",
}
NAME = re.compile(r"@?(?P<name>[A-Za-z_][\w.]*)(?:\((?P<inside>.*)\))?(?:\s?=.*)?:?")


@functools.cache
def words_of(file: str) -> frozenset[str]:
    """The names in a file; of Python without comments and docstrings: they may be left behind."""
    path = ROOT / file
    if file.endswith(".py") or file == "workshop":
        tree, found = ast.parse(path.read_text()), set()
        docs = {
            ast.get_docstring(n, clean=False)
            for n in ast.walk(tree)
            if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value not in docs
            ):
                found.update(re.findall(r"\w+", node.value))
        with tokenize.open(path) as lines:
            found |= {
                t.string
                for t in tokenize.generate_tokens(lines.readline)
                if t.type == tokenize.NAME
            }
        return frozenset(found)
    content = gzip.decompress(path.read_bytes()) if file.endswith(".gz") else path.read_bytes()
    return frozenset(re.findall(r"[A-Za-z_]\w*", content.decode(errors="replace")))


def vocabulary(readme: Readme) -> set[str]:
    """The names a README may use: of its folder, of the stage before it, of tools."""
    folders = {
        readme.folder,
        *(a.split("/")[0] for a, b, _ in NEIGHBOURS if b.split("/")[0] == readme.folder),
    }
    if not re.match(r"\d", readme.folder):
        folders |= {stage.folder for stage in STAGES} | {"submit", "container"}
    files = [f for f in FILES if not f.endswith((".md", ".png")) and f.split("/")[0] in folders]
    files += [f for f in FILES if re.fullmatch(r"tfworkshop/.*\.py|[\w-]+\.txt|workshop", f)]
    return set().union(*map(words_of, files))


@functools.cache
def resolves(name: str) -> bool:
    """tf.data.Dataset and the like, by asking the package."""
    first, *rest = name.split(".")
    if first == "model":
        first, rest = "keras", ["Model", *rest]
    if first not in PACKAGES:
        return False
    found = importlib.import_module(PACKAGES[first])
    for part in rest:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@functools.cache
def parameters() -> set[str]:
    found = set()
    for name in PARAMETERS_OF:
        first, *rest = name.split(".")
        called = functools.reduce(getattr, rest, importlib.import_module(PACKAGES[first]))
        found |= set(inspect.signature(called).parameters)
    return found


def known_name(name: str, known: set[str]) -> bool:
    if "." in name and resolves(name):
        return True
    if "." in name:  # of a variable of ours: every part must be known
        return name.split(".")[0] not in PACKAGES and all(
            known_name(p, known) for p in name.split(".")
        )
    return (
        name in known
        or name in OTHERS
        or name in (*commands.NAMES, *FOREIGN, *OURS, *PACKAGES)
        or hasattr(builtins, name)
        or name in parameters()
        or name in ("for", "with", "python")
        or any(resolves(f"{home}.{name}") for home in AT_HOME)
    )


def check_names(readme: Readme) -> list[str]:
    known, complaints = vocabulary(readme), []
    for span in dict.fromkeys(readme.spans):
        found = NAME.fullmatch(span)
        if not found or A_PATH.fullmatch(span) or looks_typed(span) or span in OTHERS:
            continue
        names = [found["name"]]
        with contextlib.suppress(SyntaxError):  # what it is called with, where that is Python
            tree = ast.parse(span.lstrip("@").rstrip(":"))
            names += [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
            names += [k.arg for k in ast.walk(tree) if isinstance(k, ast.keyword) and k.arg]
        for name in names:
            if re.fullmatch(r"[\w.]+", name) and not known_name(name.rstrip("."), known):
                complaints.append(f"{readme.name}: `{span}`: nothing here is called {name}")
    return complaints


@every_readme
def test_names(name: str) -> None:
    assert check_names(load(name)) == []


# --- 6. pictures ---


def fingerprints() -> dict[str, str]:
    """What every picture must say that it was made of."""
    ladder = json.loads((results.quoted() / "ladder.json").read_text())
    made = {str(results.CHART.relative_to(ROOT)): table.fingerprint(ladder)}
    made[str(picture.PICTURE.relative_to(ROOT))] = picture.fingerprint()
    for name in screenshots.PICTURES:
        made[str((screenshots.IMAGES / name).relative_to(ROOT))] = screenshots.fingerprint()
    return made


def check_pictures(readmes: list[Readme], top: Path = ROOT) -> list[str]:
    complaints, used, made = [], set(), fingerprints()
    for readme in readmes:
        for target in readme.images:
            used.add(joined(readme.folder, target))
    pictures = {f for f in FILES if f.lower().endswith((".png", ".jpg", ".jpeg", ".gif", ".svg"))}
    complaints += [f"{name}: no README shows it" for name in sorted(pictures - used)]
    complaints += [f"{name}: is shown and not there" for name in sorted(used - pictures)]
    for name in sorted(used & pictures):
        with Image.open(top / name) as picture:
            picture.load()
            told, (width, height) = picture.info.get("Description"), picture.size
        if not (400 <= width <= 2000 and 100 <= height <= 2000):
            complaints.append(f"{name}: {width} x {height} is no size for a README")
        if told != made.get(name):
            complaints.append(
                f"{name}: older than what it shows: ./workshop results --write makes the chart, "
                "python -m tfworkshop.mysteries.picture the questions, "
                "python -m tfworkshop.report.screenshots the others"
            )
    return complaints


def test_pictures() -> None:
    assert check_pictures([load(name) for name in NAMES]) == []


# --- 7. every check notices the damage it is for ---


# README, check, what is there, what somebody makes of it, what is said.
DAMAGES = [
    ("02", check_flags, r"(python train_MNIST\.py) --steps", r"\1 --stepz", "has no --stepz"),
    ("top", check_flags, r"`--log-every`", "`--log-each`", "no program named here has --log-each"),
    ("top", check_flags, r"/workshop xray", "/workshop xrays", "./workshop has no xrays"),
    ("submit", check_flags, r"(slurm\.sbatch 06) --steps", r"\1 --stepps", "has no --stepps"),
    ("submit", check_flags, r'OPTIONS="--steps', 'OPTIONS="--stps', "has no --stps"),
    ("01", check_flags, r"-tmz", "-tmy", "has no -tmy"),
    ("00", check_links, r"\]\(\.\./01_line_profiler/", "](../01_line/", "there is no 01_line/"),
    ("submit", check_links, r"README\.md#enter-it", "README.md#enter", "no such heading"),
    ("container", check_links, r"\(#test-it\)", "(#test-that)", "no such heading"),
    ("04", check_links, r"images/\w+\.png", "images/none.png", "there is no 04_tf_profiler/im"),
    ("02", check_folders, r"^cd 02_tf_function\n(?=```)", "", "`python clock.py`, typed in "),
    ("02", check_paths, r"`clock\.py`", "`clocks.py`", "there is no clocks.py"),
    ("submit", check_paths, r"submit/slurm\.sbatch", "submit/slurm.sh", "no submit/slurm.sh"),
    ("top", check_variables, r"MNIST_NPZ", "MNIST_FILE", "nothing reads it"),
    ("00", check_code, r"start = time\.perf_counter\(\)", "start = time.time()", "quote it again"),
    ("02", check_diffs, r"^\+@tf\.function$", "+@tf.function()", "not the real diff"),
    ("03", check_diffs, r"^\+@tf\.function\(jit_compile=", "+@tf.function(", "not the real diff"),
    ("01", check_diffs, r"^-( +images, labels = fetch_batch)", r" \1", "not the real diff"),
    ("05", check_diffs, r"^\+( +scaled_loss)", r" \1", "not the real diff"),
    ("00", check_names, r"`fetch_batch`", "`fetch_a_batch`", "called fetch_a_batch"),
    ("06", check_names, r"`FusedAdam`", "`hvd.reduce_all`", "called hvd.reduce_all"),
    ("05", check_names, r"`compute_gradients`", "`compute_slopes`", "called compute_slopes"),
    ("02", check_names, r"`drop_remainder=True`", "`drop_rest=True`", "called drop_rest"),
    ("00", check_figures, r"(?<=img_per_s {7})\d", "9", "./workshop results --write"),
    ("02", check_figures, r"(?<=-->)[\d.]+(?=x<!--/=)", "99", "./workshop results --write"),
    ("submit", check_marks, r"<!-- not run by tests:", "<!-- not tested:", "is no mark"),
    ("submit", check_marks, r"(test_submit\.py::)test_\w+", r"\1test_of", "there is no tests/"),
    ("top", check_marks, r"^```bash$", "```bash now", "is not closed"),
    ("00", check_marks, r"^```bash$", "```console", "no test knows ```console"),
    ("00", check_code, r"^( +)log_step\(", r"\1  log_step(", "quote it again"),
    ("02", check_diffs, r"^\+@tf\.function$", "+@tf", "not the real diff"),
    ("00", check_marks, r"```\n(<!-- not compared)", r"```\n\nSo.\n\n\1", "under no block"),
]


@pytest.mark.parametrize(
    ("place", "check", "there", "made_of_it", "says"),
    DAMAGES,
    ids=lambda value: getattr(value, "__name__", None),
)
def test_damage_is_noticed(place: str, check, there: str, made_of_it: str, says: str) -> None:
    places = {f"top/{n}".split("/")[-2]: n for n in NAMES if n.endswith("README.md")}
    name = next(n for folder, n in places.items() if folder.startswith(place))
    text = (ROOT / name).read_text()
    damaged = re.sub(there, made_of_it, text, count=1, flags=re.M)
    assert damaged != text, f"{name} has changed: damage something else here"
    complaints = check(Readme(name, damaged))
    assert complaints and all(says in one and one.startswith(name) for one in complaints)


def test_a_removed_picture_is_noticed() -> None:
    readmes = [load(name) for name in NAMES]
    (four,) = [readme for readme in readmes if readme.name == "04_tf_profiler/README.md"]
    picture = four.images[-1]
    less = Readme(four.name, four.text.replace(f"]({picture})", "](README.md)"))
    others = [readme for readme in readmes if readme is not four]
    assert f"04_tf_profiler/{picture}: no README shows it" in check_pictures([*others, less])


def test_a_picture_of_an_older_page_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screenshots, "fingerprint", lambda: "of another page")
    complaints = check_pictures([load(name) for name in NAMES])
    assert len(complaints) == len(screenshots.PICTURES)
    assert all("older than what it shows" in one for one in complaints)


SMALL = """\
Go.

```bash
cd 02_tf_function
echo "$PWD"   # where am I
SOME=1 bash -c 'printf "step 7 took 0.25 s\\nwrote x/y.json\\n"; exit ${FAILS:-0}'
```

```
step 12 took 1.5 s
...
wrote x/y.json
```
"""


def small_walk(text: str, top: Path) -> tuple[Readme, list[Ran]]:
    (top / "02_tf_function").mkdir(exist_ok=True)
    readme, seconds = Readme("README.md", text), 1 if "sleep" in text else 30
    return readme, Walk(top, dict(os.environ), seconds).walk(readme, shorter)


def test_a_walk_keeps_the_folder_and_compares_the_output(tmp_path: Path) -> None:
    readme, ran = small_walk(SMALL, tmp_path)
    assert [one.status for one in ran] == [0, 0, 0]
    assert ran[1].output == f"{tmp_path.resolve()}/02_tf_function\n"
    assert check_runs(readme, ran) == check_output(readme, ran) == []


@pytest.mark.parametrize(
    ("there", "made_of_it", "says"),
    [
        ("step 12 took", "Step 12 took", "no line like this (after those above it): Step 12 took"),
        ("step 12 took 1.5 s", "step 12 took long", "no line like this"),
        ("wrote x/y.json\n```", "wrote x/y.json\nstep 12 took 1 s\n```", "no line like this"),
        ("x/y.json\n```", "x/y.js\n```", "no line like this"),
        ("```\nstep", "```bash\ntrue\n```\n\n```\nstep", "`true` prints no line like this"),
        ("\ncd 02_tf_function\necho", "\necho", None),
        ("```bash\ncd", "```bash\nnosuchprogram\ncd", "(typed: nosuchprogram) ended with 127"),
        ("```bash\ncd", "```bash\nsleep 60\ncd", "ended after 1 s"),
        ("exit ${FAILS:-0}", "exit 3", "ended with 3"),
    ],
)  # fmt: skip
def test_a_walk_notices(there: str, made_of_it: str, says: str | None, tmp_path: Path) -> None:
    assert there in SMALL
    readme, ran = small_walk(SMALL.replace(there, made_of_it, 1), tmp_path)
    complaints = check_runs(readme, ran) + check_output(readme, ran)
    assert not complaints if says is None else any(says in one for one in complaints), complaints


def test_a_block_is_walked_unless_it_says_otherwise() -> None:
    for mark in ("not run by tests: why", "run by tests/test_docs.py::test_names"):
        for under in (f"```\n<!-- {mark} -->\n", f"```\n\n<!-- {mark} -->\n"):
            (block,) = Readme("README.md", f"```bash\nx\n{under}").blocks
            assert block.commands == ["x"] and not block.runs("x")
    (block,) = Readme(
        "README.md", "```bash\nx\ny z\n```\n<!-- run by tests/test_a.py::test_b: y -->"
    ).blocks
    assert [command for command in block.commands if block.runs(command)] == ["x"]
    assert Readme("README.md", "```bash\nx\n```\n<!-- not run -->\n").blocks[0].runs("x")


def test_every_stage_and_folder_has_its_readme() -> None:
    folders = {stage.folder for stage in STAGES} | {"container", "submit"}
    assert {"README.md", *(f"{folder}/README.md" for folder in folders)} <= set(NAMES)
