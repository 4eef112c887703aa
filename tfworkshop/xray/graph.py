"""A function's graph as TensorFlow would run it on an A100: lowered, placed, then optimized."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, rewriter_config_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.python.grappler import cluster, item, tf_optimizer
from tensorflow.python.ops import handle_data_util

from tfworkshop.xray import kernels

# As TensorFlow itself names them.
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
STAND_IN = "InfeedDequeue"  # an operation of any shape and type that comes from outside


@dataclass(frozen=True)
class Placed:
    nodes: dict[str, NodeDef]
    functions: dict[str, list[NodeDef]]  # what is called and not inlined: what XLA compiles
    shapes: dict[str, list[TensorShapeProto]]  # of each node's outputs
    looped: set[str]  # the nodes that run in every iteration of a loop
    error: str  # of an optimizer that failed: TensorFlow prints it and continues without it


@functools.cache
def a100() -> cluster.Cluster:
    """An imaginary machine with one A100: grappler only reads its properties."""
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
    graph, outputs = as_graph(function)
    # Calls are inlined, loops become Enter, Switch and Exit. What XLA compiles stays a call.
    inline = rewriter_config_pb2.RewriterConfig(optimizers=["function"], min_graph_nodes=-1)
    inline.function_optimization = rewriter_config_pb2.RewriterConfig.AGGRESSIVE
    graph = run_grappler(graph, outputs, inline)
    for node in graph.node:
        node.device = node.device or (CPU if belongs_on_host(node, from_host) else GPU)
    optimized, error = optimize(graph, outputs)
    properties = item.Item(meta_graph(optimized, outputs)).GetOpProperties()
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


def as_graph(function: tf.types.experimental.ConcreteFunction) -> tuple[GraphDef, list[str]]:
    """Its graph and the names of its outputs. If XLA compiles all of it, that is one call."""
    graph, outputs = function.graph.as_graph_def(), [tensor.name for tensor in function.outputs]
    if function.function_def.attr["_XlaMustCompile"].b:
        arguments = [tensor.op.name for tensor in function.inputs]
        outputs = [f"compiled_call:{i}" for i in range(len(function.outputs))]
        graph = GraphDef(library=graph.library)
        graph.library.function.append(function.function_def)
        graph.node.extend(NodeDef(name=name) for name in arguments)
        call = graph.node.add(name="compiled_call", op="StatefulPartitionedCall", input=arguments)
        call.attr["_XlaMustCompile"].b = True
        call.attr["f"].func.name = function.function_def.signature.name
        for name, tensors in (("Tin", function.inputs), ("Tout", function.outputs)):
            call.attr[name].list.type.extend(tensor.dtype.as_datatype_enum for tensor in tensors)
    given = {tensor.op.name: tensor for tensor in function.inputs}
    for node in graph.node:
        if node.name in given:
            make_argument(node, given[node.name])
    return graph, outputs


def meta_graph(graph: GraphDef, outputs: list[str]) -> MetaGraphDef:
    """With a list of what must be kept: the outputs, and operations with side effects."""
    made = MetaGraphDef(graph_def=graph)
    kept = [node.name for node in graph.node if kernels.acts(node)]
    made.collection_def["train_op"].node_list.value.extend([*outputs, *kept])
    return made


def run_grappler(
    graph: GraphDef, outputs: list[str], rewrites: rewriter_config_pb2.RewriterConfig
) -> GraphDef:
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.CopyFrom(rewrites)
    return tf_optimizer.OptimizeGraph(config, meta_graph(graph, outputs), cluster=a100())


def optimize(graph: GraphDef, outputs: list[str]) -> tuple[GraphDef, str]:
    """The graph as grappler optimizes it by default, and the error of an optimizer that failed."""
    twice = rewriter_config_pb2.RewriterConfig.TWO
    rewrites = rewriter_config_pb2.RewriterConfig(
        meta_optimizer_iterations=twice, min_graph_nodes=-1, fail_on_optimizer_errors=True
    )
    try:
        return run_grappler(graph, outputs, rewrites), ""
    except tf.errors.InvalidArgumentError as error:
        rewrites.fail_on_optimizer_errors = False
        return run_grappler(graph, outputs, rewrites), str(error)


def belongs_on_host(node: NodeDef, from_host: Collection[str]) -> bool:
    """An argument by its type or origin; anything else if it has no GPU kernel."""
    if node.op in (STAND_IN, "_Arg"):
        (dtype,) = kernels.types_of(node, "dtype" if node.op == STAND_IN else "T")
        return node.name in from_host or kernels.stays_on_host(dtype)
    return node.op in kernels.TF_DATA or not kernels.find(node)


def make_argument(node: NodeDef, tensor: tf.Tensor) -> None:
    """Grappler forgets the shape of an _Arg, but not that of an operation in its place."""
    node.attr.clear()
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
    """The nodes inside loops: all that is reached from an Enter, up to the Exits."""
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
