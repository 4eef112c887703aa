"""A function's graph as TensorFlow would run it on an A100: lowered, placed, then optimized."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, rewriter_config_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.python.framework import convert_to_constants
from tensorflow.python.grappler import cluster, item, tf_optimizer
from tensorflow.python.ops import handle_data_util

from tools.xray import kernels

# As TensorFlow itself names them.
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
STAND_IN = "InfeedDequeue"  # an operation of any shape and type that comes from outside


@dataclass(frozen=True)
class Placed:
    nodes: dict[str, NodeDef]
    functions: dict[str, list[NodeDef]]  # what is called and not inlined: what XLA compiles
    shapes: dict[str, list[TensorShapeProto]]  # of each node's outputs
    looped: set[str]  # the nodes that run at every turn of a loop
    error: str  # of an optimizer that failed: TensorFlow prints it and goes on without


@functools.cache
def a100() -> cluster.Cluster:
    """A machine with one A100 that is not there: grappler only reads its properties."""
    properties = device_properties_pb2.DeviceProperties(
        type="GPU", vendor="NVIDIA", model="A100-SXM4-40GB", frequency=1410, num_cores=108
    )
    properties.memory_size, properties.bandwidth = 38 << 30, 1_555_000_000
    properties.environment.update({"architecture": "8.0", "cuda": "12030", "cudnn": "8906"})
    host = device_properties_pb2.DeviceProperties(type="CPU", frequency=2250, num_cores=16)
    host.memory_size, host.bandwidth = 100 << 30, 20_000_000
    named = device_properties_pb2.NamedDevice
    devices = [named(name=GPU, properties=properties), named(name=CPU, properties=host)]
    return cluster.Cluster(devices=devices)


def place(function: tf.types.experimental.ConcreteFunction, from_host: Collection[str]) -> Placed:
    """`from_host`: the arguments that are in host memory at every call, whatever their type."""
    with quiet_stderr():
        lowered, outputs = lower(function)
        place_nodes(lowered, function, from_host)
        kept = [node.name for node in lowered.node if kernels.acts(node)]
        meta_graph = MetaGraphDef(graph_def=lowered)
        meta_graph.collection_def["train_op"].node_list.value.extend([*outputs, *kept])
        optimized, error = optimize(meta_graph)
        meta_graph.graph_def.CopyFrom(optimized)
        properties = item.Item(meta_graph).GetOpProperties()
    for node in optimized.node:
        if node.op == STAND_IN:
            node.op = "_Arg"
            node.attr["T"].type = node.attr["dtype"].type
    return Placed(
        nodes={node.name: node for node in optimized.node},
        functions={f.signature.name: list(f.node_def) for f in optimized.library.function},
        shapes={name: [made.shape for made in found] for name, found in properties.items()},
        looped=looped(optimized),
        error=error,
    )


def lower(function: tf.types.experimental.ConcreteFunction) -> tuple[GraphDef, list[str]]:
    """Calls are inlined, loops become Enter, Switch and Exit. What XLA compiles stays a call."""
    if not function.function_def.attr["_XlaMustCompile"].b:
        lowered = convert_to_constants._run_inline_graph_optimization(
            function, lower_control_flow=True, aggressive_inlining=True
        )
        return lowered, [tensor.name for tensor in function.outputs]
    graph = GraphDef(library=function.graph.as_graph_def().library)
    graph.library.function.append(function.function_def)
    for tensor in function.inputs:
        graph.node.add(name=tensor.op.name, op="Placeholder")
    call = graph.node.add(name="compiled_call", op="StatefulPartitionedCall")
    call.input.extend(node.name for node in graph.node[:-1])
    call.attr["_XlaMustCompile"].b = True
    call.attr["f"].func.name = function.function_def.signature.name
    for name, tensors in (("Tin", function.inputs), ("Tout", function.outputs)):
        call.attr[name].list.type.extend(tensor.dtype.as_datatype_enum for tensor in tensors)
    return graph, [f"{call.name}:{i}" for i in range(len(function.outputs))]


def place_nodes(lowered: GraphDef, function, from_host: Collection[str]) -> None:
    """On the GPU, as TensorFlow does it, whatever has a kernel for it."""
    arguments = {tensor.op.name: tensor for tensor in function.inputs}
    for node in lowered.node:
        if node.name in arguments:
            make_argument(node, arguments[node.name], node.name in from_host)
        else:
            node.device = GPU if kernels.find(node) else CPU


def optimize(meta_graph: MetaGraphDef) -> tuple[GraphDef, str]:
    """What grappler makes of the graph by default, and the error of an optimizer that failed."""
    config = config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.TWO
    rewrites.min_graph_nodes = -1  # small graphs too
    rewrites.fail_on_optimizer_errors = True
    try:
        return tf_optimizer.OptimizeGraph(config, meta_graph, cluster=a100()), ""
    except tf.errors.InvalidArgumentError as error:
        rewrites.fail_on_optimizer_errors = False
        return tf_optimizer.OptimizeGraph(config, meta_graph, cluster=a100()), str(error)


def make_argument(node: NodeDef, tensor: tf.Tensor, from_host: bool) -> None:
    """An argument whose shape is known, as it is at run time; lowering left one of any shape.

    Grappler forgets the shape of an _Arg, but not that of the operation that stands in for it.
    """
    node.attr.clear()
    node.device = CPU if from_host or kernels.stays_on_host(tensor.dtype.as_datatype_enum) else GPU
    if tensor.dtype == tf.resource:
        node.op = "_Arg"
        node.attr["T"].type = tensor.dtype.as_datatype_enum
        for variable in handle_data_util.get_resource_handle_data(tensor).shape_and_type:
            node.attr["_handle_dtypes"].list.type.append(variable.dtype)
            node.attr["_handle_shapes"].list.shape.append(variable.shape)
    else:
        node.op = STAND_IN
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())


def looped(graph: GraphDef) -> set[str]:
    """The nodes inside of loops: what is reached from an Enter, up to the Exits."""
    after: dict[str, list[NodeDef]] = {}
    for node in graph.node:
        for source in node.input:
            after.setdefault(source.lstrip("^").split(":")[0], []).append(node)
    found: set[str] = set()
    waiting = [node for node in graph.node if node.op == "Enter"]
    while waiting:
        for node in after.get(waiting.pop().name, []):
            if node.name not in found and node.op != "Exit":
                found.add(node.name)
                waiting.append(node)
    return found


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Keep off the screen what C++ prints, which no reader can act on."""
    sys.stderr.flush()
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
