"""Writes C for the functions that functions.txt describes, and for those that nobody implements.

Which functions TensorFlow may call is in its own lists, a file of quoted names for each library.
"""

from __future__ import annotations

import re
from pathlib import Path

RULES = Path(__file__).with_name("functions.txt")
# What each library answers for a function that it does not support, from its public header.
NOT_SUPPORTED = {"cuda": 801, "cudart": 801, "cublas": 15, "cublasLt": 15, "cudnn": 9}
NOT_SUPPORTED |= {"cufft": 16, "cusolver": 9, "cusparse": 10, "cupti": 27, "nvml": 3, "nccl": 5}
PER_THREAD = re.compile(r"_pt[ds][sz]$")  # other names of functions, which TensorFlow does not use

HEADER = """\
typedef long word;
int not_implemented(const char *name, int *said, int error);
int launch_cublas(word handle, const char *name);
int launch_cudnn(word handle, const char *name);
int create_cudnn_object(word result);
"""


def read_rules() -> list[tuple[str, re.Pattern[str]]]:
    rules = []
    for line in RULES.read_text().splitlines():
        if line and not line.startswith("#"):
            action, pattern = re.split(r"\s{2,}", line)
            rules.append((action, re.compile(pattern)))
    return rules


def generate(lists: Path, implemented: set[str]) -> str:
    """The C source of every function in the lists that is not implemented."""
    rules = read_rules()
    known = set(implemented)
    lines = [HEADER]
    for path in sorted(lists.glob("*.inc")):
        error = NOT_SUPPORTED.get(path.stem, 1)
        for name in re.findall(r'"(\w+)"', path.read_text()):
            if name not in known and not PER_THREAD.search(name):
                known.add(name)
                lines.append(write_function(name, find_action(name, rules), error))
    return "".join(lines)


def find_action(name: str, rules: list[tuple[str, re.Pattern[str]]]) -> str:
    for action, pattern in rules:
        if pattern.fullmatch(name):
            return action
    return ""


def write_function(name: str, action: str, error: int) -> str:
    """One function. Its arguments are words or pointers, so any number of them can be passed on."""
    if action.startswith("is "):
        same = action.split()[1]
        arguments = ", ".join(f"word {letter}" for letter in "abcdef")
        return f"int {same}();\nint {name}({arguments}) {{ return {same}(a, b, c, d, e, f); }}\n"
    bodies = {
        "nothing": "return 0;",
        "cublas": f'return launch_cublas(a, "{name}");',
        "cudnn": f'return launch_cudnn(a, "{name}");',
        "object": "return create_cudnn_object(a);",
        "refused": f"return {error};",
        "": f'static int said; return not_implemented("{name}", &said, {error});',
    }
    return f"int {name}(word a) {{ {bodies[action]} }}\n"
