"""Which kernel TensorFlow uses for a node on a GPU, and where that kernel needs its tensors.

The kernels are listed in registry.json.gz, as the CUDA wheel registers them; see dump_registry.py.
"""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import op_def_registry

REGISTRY = Path(__file__).with_name("registry.json.gz")
ALWAYS_HOST = {types_pb2.DT_RESOURCE, types_pb2.DT_STRING}
# A GPU kernel exists, but these run where their iterator is: tf.data works on the host.
TF_DATA = {"IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional"}
TF_DATA |= {"OptionalGetValue", "OptionalHasValue"}
CALLS = {"PartitionedCall", "StatefulPartitionedCall", "While"}


class Kernel(NamedTuple):
    device: str  # GPU, DEFAULT (any device) or XLA_GPU_JIT
    label: str
    priority: int
    allowed: dict[str, list[int]]  # the types that an attribute may have
    host: list[str]  # arguments that the kernel reads or writes in host memory


class Port(NamedTuple):
    """An input or an output of a node."""

    name: str
    dtype: int
    host: bool


@functools.cache
def registry() -> dict:
    """{"tensorflow": version, "kernels": {operation: [Kernel's fields, ...]}}."""
    return json.loads(gzip.decompress(REGISTRY.read_bytes()))


def types_of(node: NodeDef, name: str) -> tuple[int, ...]:
    value = node.attr[name]
    return (value.type,) if value.WhichOneof("value") == "type" else tuple(value.list.type)


def find(node: NodeDef, devices: tuple[str, ...] = ("GPU", "DEFAULT")) -> Kernel | None:
    """The kernel that TensorFlow uses: from the first of these devices that has one."""
    label = node.attr["_kernel"].s.decode() if "_kernel" in node.attr else ""
    types = tuple((name, types_of(node, name)) for name in sorted(node.attr) if name[0] != "_")
    return look_up(node.op, label, types, devices)


@functools.cache
def look_up(op: str, label: str, types: tuple, devices: tuple[str, ...]) -> Kernel | None:
    have = dict(types)
    kernels = [Kernel(*fields) for fields in registry()["kernels"].get(op, [])]
    for device in devices:
        fitting = [
            kernel
            for kernel in kernels
            if kernel.device == device
            and kernel.label == label
            and all(n in have and set(have[n]) <= set(t) for n, t in kernel.allowed.items())
        ]
        if fitting:
            return max(fitting, key=lambda kernel: kernel.priority)
    return None


def on_host(node: NodeDef) -> bool:
    """Placed there: it has no GPU kernel, returns what tf.data made, or tf.device says so."""
    return "CPU" in node.device.upper()


def stays_on_host(dtype: int) -> bool:
    """Whether TensorFlow keeps arguments and results of this type in host memory."""
    return dtype in ALWAYS_HOST or dtype == types_pb2.DT_INT32


def compiled(node: NodeDef) -> bool:
    """A call of a function that XLA compiles."""
    return "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b


def ports(node: NodeDef) -> tuple[list[Port], list[Port]]:
    """The inputs and outputs of a node, by the rules of TensorFlow's MemoryTypesForNode.

    A node on the host has everything in host memory. A GPU kernel says what it needs there. A call
    has no kernel of its own: int32 stays in host memory, unless XLA compiles the called function.
    """
    kernel = None if on_host(node) else find(node)
    own = kernel is not None and node.op not in CALLS
    on_host_by_kernel = kernel.host if kernel is not None and own else []
    definition = op_def_registry.get(node.op)

    def expand(arguments: Any) -> list[Port]:
        found = []
        for argument in arguments:
            if argument.type_list_attr:
                types = types_of(node, argument.type_list_attr)
            else:
                one = argument.type or node.attr[argument.type_attr].type
                count = node.attr[argument.number_attr].i if argument.number_attr else 1
                types = (one,) * count
            for dtype in types:
                host = kernel is None or dtype in ALWAYS_HOST
                host = host or argument.name in on_host_by_kernel
                host = host or (dtype == types_pb2.DT_INT32 and not own and not compiled(node))
                found.append(Port(argument.name, dtype, host))
        return found

    return expand(definition.input_arg), expand(definition.output_arg)


def acts(node: NodeDef) -> bool:
    """Whether it has a side effect instead of a result: it assigns, prints or checks."""
    definition = op_def_registry.get(node.op)
    return definition is not None and definition.is_stateful and not definition.output_arg


def dtype_name(dtype: int) -> str:
    return tf.dtypes.as_dtype(dtype).name


def describe(node: NodeDef) -> str:
    """The operation with its types: GatherV2(Tparams=uint8)."""
    types = []
    for name in sorted(node.attr):
        if not name.startswith("_") and (found := types_of(node, name)):
            types.append(f"{name}={'+'.join(sorted({dtype_name(t) for t in found}))}")
    return f"{node.op}({', '.join(types)})" if types else node.op
