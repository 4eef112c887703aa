"""Time by layer, from the names of operations; and kernels by kind, from theirs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

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
KINDS = (  # of a kernel: the first that fits its name or its operation's
    ("communication", r"nccl|rccl|all-?reduce|all-?gather|reduce-?scatter"),
    ("convolution", r"conv(olution|\dd|_|-)|fprop|dgrad|wgrad|winograd|miopen|implicit_"),
    ("matrix multiply", r"gemm|matmul|cutlass|cublas|\bcijk_|einsum|\bdot\b|attention"),
    ("random numbers", r"philox|random|\brng"),
    ("copy and layout", r"memcpy|memset|transpose|swapdim|^copy|concat|gather|slice|pad"),
    ("reduction", r"reduc|softmax|norm|\bsum\b|mean|pool|segment"),
    ("elementwise", r"eigen|elementwise|fusion|\bbinary|unary|cast|add|mul|relu|select|assign"),
)


@dataclass
class Layer:
    name: str
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    optimizer_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.forward_ms + self.backward_ms + self.optimizer_ms


def short_name(kernel: str) -> str:
    """A C++ kernel's name without namespaces, arguments and Eigen's wrapping."""
    name = re.sub(r"\b(?:\w+::)+", "", kernel.replace("(anonymous namespace)::", ""))
    name = re.sub(r"^void ", "", name).replace(" const", "").replace("> >", ">>")
    name = re.sub(r"(?<=.)\([^()]*\)$", "", name)
    name = re.sub(r"TensorMap<Tensor<(\w+), [^<>]*>, \d+, MakePointer>", r"\1", name)
    wrapped = r"EigenMetaKernel<TensorEvaluator<TensorAssignOp<\w+, (.*)>, GpuDevice>, \w+>"
    found = re.fullmatch(wrapped, name)
    return f"Eigen {found[1]}" if found else name


def kind_of(kernel: str, operation: str) -> str:
    for text in (kernel, operation.rpartition("/")[2]):
        for kind, pattern in KINDS[:-1]:
            if re.search(pattern, text, re.I):
                return kind
    return "elementwise" if re.search(KINDS[-1][1], kernel + operation, re.I) else "other"


def kinds(kernels: Iterable[tuple[str, str, float]]) -> dict[str, float]:
    """Time of kernels by kind; each is given as its name, its operation's, and its time."""
    found: dict[str, float] = defaultdict(float)
    for name, operation, spent in kernels:
        found[kind_of(name, operation)] += spent
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def scope(name: str) -> tuple[str, list[str]]:
    """Phase and path of an operation, its own name left out."""
    path = [part for part in name.split(":")[0].split("/") if part and not WRAPPING.match(part)]
    path = [re.sub(r"^(?:transpose\()?jvp\((\w+)\)+$", r"\1", part) for part in path]
    if any(OPTIMIZER.search(part) for part in path[:2]):
        return "optimizer", ["optimizer"]
    return "backward" if BACKWARD.search(name) else "forward", path[:-1]


def layers(operations: Iterable[tuple[str, float]]) -> list[Layer]:
    """Operations, given by name and time, by the layer that they belong to."""
    rows = [(*scope(name), spent) for name, spent in operations]
    forward, backward = (
        {path[0] for phase, path, _ in rows if path and phase == wanted}
        for wanted in ("forward", "backward")
    )
    # The model is what has gradients: an input pipeline has scopes, too.
    inside = forward & backward or forward | backward
    around = shared([row for row in rows if row[1] and row[1][0] in inside])
    found: dict[str, Layer] = {}
    for phase, path, spent in rows:
        if phase == "optimizer":
            name = "optimizer"
        elif path[: len(around)] == around and path:
            name = path[min(len(around), len(path) - 1)]
        else:
            name = OUTSIDE
        layer = found.setdefault(name, Layer(name))
        setattr(layer, f"{phase}_ms", getattr(layer, f"{phase}_ms") + spent)
    made = sorted(found.values(), key=lambda layer: -layer.total_ms)
    named = [layer for layer in made if layer.name not in ("optimizer", OUTSIDE)]
    return made if len(named) > 1 else []


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
