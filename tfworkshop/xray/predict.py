"""From a script or a function to the figures of its step, as plain data.

A case is a dict: stage (the folder), script, name (as in the ladder), precision, xla,
steps_per_call; of one step kernels, compiled_calls, without_kernel and copies, all None where the
step is eager; once_a_call, the kernels, compiled_calls and copies besides; notes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tensorflow.core.framework.node_def_pb2 import NodeDef

from tfworkshop.xray import capture, copies, graph, kernels

STEPS_PER_CALL = 10
EAGER = "Eager: each operation is a launch of its own, see 02"
LAYOUT = (
    'On a GPU TensorFlow will print "layout failed: INVALID_ARGUMENT: Size of values 0 ...". '
    "It is harmless: tensorflow issue 98985"
)
BOTH_SIDES = "Both sides of a condition are counted, though only one of them runs"
ONE_TURN = "The figures are for one turn of its loop"
NOTHING = {"kernels": 0, "compiled_calls": 0, "copies": []}
# On a GPU these launch nothing: they pass a tensor on, look at a shape or swap a buffer.
FREE = {"Const", "Identity", "IdentityN", "NoOp", "StopGradient", "PreventGradient", "_Arg"}
FREE |= {"Enter", "Exit", "Switch", "Merge", "NextIteration", "LoopCond"}
FREE |= {"VarHandleOp", "ReadVariableOp", "AssignVariableOp"}
FREE |= {"Reshape", "Squeeze", "ExpandDims", "Bitcast", "Shape", "ShapeN", "Size", "Rank"}
FREE |= {"TensorListReserve", "TensorListSetItem", "TensorListGetItem", "EnsureShape"}
FREE |= {"TensorListPushBack", "TensorListPopBack"}


def script(path: Path, folder: Path) -> Iterator[dict]:
    """A case for each precision and XLA setting that a stage's script can train with.

    Data for it is put into the folder.
    """
    stage = capture.Script(path)
    known = {"stage": path.parent.name, "script": path.name, "name": stage.module.STAGE}
    known |= {"precision": "float32"}
    if stage.is_eager():
        unknown = dict.fromkeys(("kernels", "compiled_calls", "without_kernel", "copies"))
        known |= {"xla": "off", "steps_per_call": 1, **unknown}
        yield {**known, "once_a_call": NOTHING, "notes": [EAGER]}
        return
    options = stage.options()
    switches = {name: options[name] for name in ("precision", "xla") if options.get(name)}
    # A script of many steps a call has all images on the device. Others see a batch at a time.
    steps = STEPS_PER_CALL if "steps_per_call" in options else 1
    words = ["--data", str(capture.black_images(folder, 60_000 if steps > 1 else 1000))]
    words += ["--steps", "100", *(["--steps-per-call", str(steps)] if steps > 1 else [])]
    with ThreadPoolExecutor(1) as thread:  # grappler needs no Python: the next is traced meanwhile
        found = []
        for values in itertools.product(*switches.values()):
            chosen = dict(zip(switches, values))
            given = [word for name, value in chosen.items() for word in (f"--{name}", value)]
            call = stage.step([*words, *given])
            found.append((chosen, thread.submit(figures, call, steps)))
        for chosen, future in found:
            yield {**known, **future.result(), **chosen}


def own_function(path: Path, name: str) -> list[dict]:
    """A case for each signature that a reader's tf.function has."""
    cases = []
    for found in capture.signatures(path, name):
        given = found.inputs[: len(found.inputs) - len(found.captured_inputs)]
        types = ", ".join(f"{t.op.name}: {t.dtype.name}{t.shape}" for t in given)
        known = {"stage": None, "script": path.name, "name": f"{name}({types})", "precision": None}
        cases.append({**known, **figures(capture.Call(found))})
    return cases


def figures(call: capture.Call, steps: int = 1) -> dict:
    """The figures of one concrete function that runs this many steps per call."""
    placed = graph.place(call.function, call.from_host)
    in_loop, once = copies.find(placed, call.from_host)
    once += [copies.of_output(tensor, steps) for tensor in call.read]
    once.sort(key=lambda copy: copy["cause"] not in call.from_host.values())  # the batch first
    nodes = placed.nodes.values()
    in_loops = {**count(node for node in nodes if node.name in placed.looped), "copies": in_loop}
    outside = {**count(node for node in nodes if node.name not in placed.looped), "copies": once}
    if steps == 1 and not placed.looped:  # a call is a step
        in_loops, outside = outside, NOTHING
    compiled = [node for node in nodes if kernels.compiled(node)]
    return {
        "xla": "on" if compiled else "off",
        "steps_per_call": steps,
        **in_loops,
        "without_kernel": without_kernel(placed, compiled),
        "once_a_call": outside,
        "notes": notes(placed, steps),
    }


def notes(placed: graph.Placed, steps: int) -> list[str]:
    found = [LAYOUT] if "Size of values 0" in placed.error else []
    found += [ONE_TURN] if placed.looped and steps == 1 else []
    conditions = (node for node in placed.nodes.values() if node.op == "Switch")
    asked = (copies.endpoint(placed, node.input[1])[0] for node in conditions)
    return found + [BOTH_SIDES] * any(node.op != "LoopCond" for node in asked)


def count(nodes: Iterable[NodeDef]) -> dict:
    nodes = list(nodes)
    compiled = sum(kernels.compiled(node) for node in nodes)
    return {"kernels": sum(map(launches, nodes)), "compiled_calls": compiled}


def launches(node: NodeDef) -> bool:
    """Whether it is work for the device: not if all its outputs are in host memory."""
    if node.op in FREE or kernels.compiled(node) or kernels.on_host(node):
        return False
    outputs = kernels.ports(node)[1]
    return not outputs or not all(port.host for port in outputs)


def without_kernel(placed: graph.Placed, compiled: list[NodeDef]) -> list[str]:
    """The operations that must run on the host, and those that XLA cannot compile for a GPU."""
    found = [
        kernels.describe(node)
        for node in placed.nodes.values()
        if not kernels.find(node) and not kernels.compiled(node)
    ]
    seen: set[str] = set()
    waiting = list(compiled)
    while waiting:
        for name in functions_in(waiting.pop()):
            for node in placed.functions[name] if name not in seen else ():
                waiting.append(node)
                if not kernels.find(node, ("XLA_GPU_JIT",)):
                    found.append(f"{kernels.describe(node)} in XLA")
            seen.add(name)
    return found


def functions_in(node: NodeDef) -> list[str]:
    """What a node calls: a function, the body of a loop, the branches of a condition."""
    values = list(node.attr.values())
    named = [value.func for value in values if value.WhichOneof("value") == "func"]
    return [func.name for func in [*named, *(f for value in values for f in value.list.func)]]
