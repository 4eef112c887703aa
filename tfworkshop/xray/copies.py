"""Every copy between host and device that a placed graph makes, with its bytes and its cause."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tfworkshop.xray import kernels
from tfworkshop.xray.graph import Placed

# They pass their input on: the cause of a copy comes before them.
HAND_ON = {"Identity", "Enter", "Switch", "Merge", "NextIteration", "Exit", "LoopCond"}

Copy = dict[str, Any]  # direction, bytes (None: not known), dtype, from, to, cause


def find(placed: Placed, from_host: dict[str, str]) -> tuple[list[Copy], list[Copy]]:
    """The copies inside loops, and those outside.

    `from_host` names the arguments that come from host memory at every call, and says from where.
    A tensor is copied once for all that need it on the other side.
    """
    ports = {name: kernels.ports(node) for name, node in placed.nodes.items()}
    inside: list[Copy] = []
    outside: list[Copy] = []
    seen: set[tuple[str, int]] = set()
    for node in placed.nodes.values():
        for reference, wanted in zip(data_inputs(node), ports[node.name][0]):
            source, i = endpoint(placed, reference)
            made = ports[source.name][1][i]
            if made.host == wanted.host or (source.name, i) in seen:
                continue
            seen.add((source.name, i))
            root = first_source(placed, source)
            copy = {
                "direction": "host to device" if made.host else "device to host",
                "bytes": size(placed, source, i, made.dtype),
                "dtype": kernels.dtype_name(made.dtype),
                "from": label(root),
                "to": label(node),
                "cause": cause(root, made, node, wanted, from_host),
            }
            (inside if node.name in placed.looped else outside).append(copy)
    return inside, outside


def of_output(tensor: tf.Tensor, steps: int) -> Copy:
    """Python reads what the function returned: one value for each step."""
    sizes = [steps if size is None and steps > 1 else size for size in tensor.shape.as_list()]
    known = None if None in sizes else math.prod(sizes) * tensor.dtype.size
    copy = {"direction": "device to host", "bytes": known, "dtype": tensor.dtype.name}
    why = "Python reads the loss" if steps == 1 else "Python reads the losses"
    return {**copy, "from": "the result", "to": "Python", "cause": why}


def data_inputs(node: NodeDef) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def endpoint(placed: Placed, reference: str) -> tuple[NodeDef, int]:
    name, _, i = reference.partition(":")
    return placed.nodes[name], int(i or 0)


def first_source(placed: Placed, node: NodeDef) -> NodeDef:
    """The node that made the tensor, before those that only pass it on."""
    while node.op in HAND_ON and data_inputs(node):
        node, _ = endpoint(placed, data_inputs(node)[0])
    return node


def size(placed: Placed, node: NodeDef, i: int, dtype: int) -> int | None:
    shapes = placed.shapes.get(node.name, [])
    if i >= len(shapes) or shapes[i].unknown_rank or any(dim.size < 0 for dim in shapes[i].dim):
        return None
    return math.prod(dim.size for dim in shapes[i].dim) * tf.dtypes.as_dtype(dtype).size


def label(node: NodeDef) -> str:
    return f"argument {node.name}" if node.op == "_Arg" else f"{node.op} ({node.name})"


def cause(
    source: NodeDef, made: kernels.Port, target: NodeDef, wanted: kernels.Port, from_host: dict
) -> str:
    if source.name in from_host:
        return from_host[source.name]
    for node in (target, source):
        if not kernels.find(node):
            return f"{kernels.describe(node)} has no GPU kernel"
        if kernels.on_host(node) and node.op != "_Arg":
            return f"{node.op} runs on the host"
    reader = "the compiled call" if kernels.compiled(target) else target.op
    if source.op == "_Arg":
        return f"int32 stays in host memory, {reader} reads it on the device"
    if wanted.name == "pred":
        return f"the host waits for {source.op}, to choose the side of a condition"
    if wanted.host and target.op in HAND_ON:
        return f"int32 goes back to host memory, {source.op} made it on the device"
    if wanted.host:
        return f"{reader} reads its {wanted.name} in host memory"
    return f"{source.op} leaves its {made.name} in host memory"
