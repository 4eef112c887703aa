"""Time by layer, from the scopes in the names of operations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from tfworkshop.report.profile import Layer

# Parts of a name that say how a step was built, not which layer it is.
WRAPPING = re.compile(
    r"^(\w*PartitionedCall\w*|replica_\d+|while|body|cond\w*|then|else|branch\w*|_\d*|__\w*"
    r"|jit\(\w*\)|cluster\w*|gradient_tape|gradients|jvp\(\)|Adam\w*Grad)$"
)
OPTIMIZER = re.compile(
    r"^(adam|adamw|adamax|nadam|sgd|rmsprop|adagrad|adadelta|ftrl|lamb|lion|loss_?scale_?optimizer)"
    r"(_\d+)?$|optimizer|AdamWeightDecay|ResourceApply",
    re.I,
)
BACKWARD = re.compile(r"(^|/)(gradient_tape|gradients)/|transpose\(")
OUTSIDE = "outside the model"


def scope(name: str) -> tuple[str, list[str]]:
    """Phase and path of an operation, its own name left out."""
    path = [part for part in name.split(":")[0].split("/") if part and not WRAPPING.match(part)]
    path = [re.sub(r"^(?:transpose\()?jvp\((\w+)\)+$", r"\1", part) for part in path]
    if any(OPTIMIZER.search(part) for part in path[:2]):
        return "optimizer", ["optimizer"]
    return "backward" if BACKWARD.search(name) else "forward", path[:-1]


def layers(operations: Iterable[tuple[str, float]]) -> list[Layer]:
    """Sum operations, given by name and time, by the layer that they belong to."""
    rows = [(*scope(name), spent) for name, spent in operations]
    forward, backward = (
        {path[0] for phase, path, _ in rows if path and phase == wanted}
        for wanted in ("forward", "backward")
    )
    # The model is what has gradients: an input pipeline has scopes, too.
    inside = forward & backward or forward | backward
    around = shared([row for row in rows if row[1] and row[1][0] in inside])
    by_name: dict[str, Layer] = {}
    for phase, path, spent in rows:
        if phase == "optimizer":
            name = "optimizer"
        elif path[: len(around)] == around and path:
            name = path[min(len(around), len(path) - 1)]
        else:
            name = OUTSIDE
        layer = by_name.setdefault(name, Layer(name))
        setattr(layer, f"{phase}_ms", getattr(layer, f"{phase}_ms") + spent)
    result = sorted(by_name.values(), key=lambda layer: -layer.total_ms)
    named = [layer for layer in result if layer.name not in ("optimizer", OUTSIDE)]
    return result if len(named) > 1 else []


def shared(rows: list[tuple[str, list[str], float]]) -> list[str]:
    """The scopes that most operations are in: the model and its parts around the layers."""
    prefix: list[str] = []
    while True:
        below = Counter(
            path[len(prefix)]
            for _, path, _ in rows
            if path[: len(prefix)] == prefix and len(path) > len(prefix)
        )
        del below["optimizer"]
        if not below or below.most_common(1)[0][1] < 0.7 * sum(below.values()):
            return prefix
        prefix = [*prefix, below.most_common(1)[0][0]]
