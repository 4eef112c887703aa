"""The cases as a table, and below it what its letters mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from string import ascii_letters

from rich import box
from rich.console import Console
from rich.table import Table

LAST_LINES = (
    "Kernels are operations that give the device work. Some launch more than one, and a compiled "
    "call launches what XLA made of it.\n"
    "Where there is a GPU, look: tf.debugging.set_log_device_placement(True) logs where each "
    "operation runs, and the profiler (stage 04) shows kernels and copies with their times."
)
OWN_ARGUMENTS = (
    "Arguments are assumed to be on the device already, but int32 in host memory. "
    "What comes from tf.data or NumPy must be copied in addition."
)
Letters = dict[tuple, str]  # one for each kind of copy


def show(cases: list[dict], console: Console) -> None:
    own = cases[0]["stage"] is None
    letters: Letters = {}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in ["function"] if own else ["a step of", "precision"]:
        table.add_column(title, no_wrap=not own)
    table.add_column("XLA")
    for title in ("kernels", "compiled\ncalls", "without a\nkernel", "copies"):
        table.add_column(title, justify="right")
    table.add_column("")
    before = ""
    for case in cases:
        shown, before = ("" if case["name"] == before else case["name"]), case["name"]
        precision = [] if own else [case["precision"].replace("mixed_", "")]
        table.add_row(shown, *precision, *figures(case, letters))
    console.print(table)
    for line in explanations(cases, letters):
        console.print(line, markup=False)
    console.print(f"{OWN_ARGUMENTS}\n{LAST_LINES}" if own else LAST_LINES)


def figures(case: dict, letters: Letters) -> list[str]:
    if case["kernels"] is None:
        return ["-", "eager", "-", "-", "-", ""]
    whole = not case["kernels"] and case["once_a_call"]["compiled_calls"]  # of many steps
    counts = [f"{case['kernels']:,}", f"{whole} a call" if whole else f"{case['compiled_calls']}"]
    counts += [f"{len(case['without_kernel'])}", f"{len(case['copies'])}"]
    return [case["xla"], *counts, lettered(case["copies"], letters)]


def lettered(copies: list[dict], letters: Letters) -> str:
    """a 2b: one copy of kind a, two of kind b."""
    kinds = Counter(kind(copy) for copy in copies)
    for new in kinds:
        letters.setdefault(new, ascii_letters[len(letters) % 52])
    return " ".join(f"{n if n > 1 else ''}{letters[which]}" for which, n in kinds.items())


def kind(copy: dict) -> tuple[str, str, str]:
    argument = copy["from"].removeprefix("argument ")
    what = f"{argument}: " if argument != copy["from"] else ""
    size = "any size" if copy["bytes"] is None else f"{copy['bytes']:,} B"
    way = "to device" if copy["direction"] == "host to device" else "to host"
    return way, size, f"{what}{copy['cause']}"


def explanations(cases: list[dict], letters: Letters) -> list[str]:
    besides = grouped(cases, lambda case: [once_a_call(case, letters)])
    lines = [f"{letters[key]}  {key[0]:9} {key[1]:>10}  {key[2]}" for key in letters]
    if any(way == "to host" for way, _, _ in letters):
        lines.append("A copy to the host makes the host wait for the device.")
    lines += ["", *besides]
    lines += grouped(
        cases, lambda case: [f"no kernel for {op}" for op in case["without_kernel"] or ()]
    )
    lines += grouped(cases, lambda case: case["notes"])
    return [*lines, ""] if lines[-1] else lines


def once_a_call(case: dict, letters: Letters) -> str:
    extra, steps = case["once_a_call"], case["steps_per_call"]
    parts = [
        f"{n} {name}{'s' * (n > 1)}"
        for name, n in (
            ("kernel", extra["kernels"]),
            ("compiled call", extra["compiled_calls"]),
        )
        if n
    ]
    parts += [f"copies {lettered(extra['copies'], letters)}"] if extra["copies"] else []
    how = "with --xla call, " if case["xla"] == "call" else ""
    when = f"once a call of {steps} steps" if steps > 1 else "once a call"
    return f"{how}{when} besides: {', '.join(parts)}" if parts else ""


def grouped(cases: list[dict], say: Callable[[dict], list[str]]) -> list[str]:
    """Remarks on some of the cases, each line once, with the stages that it is about."""
    said: dict[str, dict[str, None]] = {}
    numbers = Counter(name[:2] for name in {case["name"] for case in cases if case["stage"]})
    for case in cases:
        where = case["name"][:2] if numbers[case["name"][:2]] == 1 else case["name"]
        for line in filter(None, say(case)):
            said.setdefault(line, {})[where] = None
    return [f"{', '.join(stages)}: {line}." for line, stages in said.items()]
