"""A stage's own step, as its main() calls it: no code of a stage is repeated here."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import inspect
import io
import logging
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from tfworkshop import data
from tfworkshop.problem import Problem

Function = type(tf.function(lambda: None))


@dataclass
class Call:
    """What a script called, and what is known about its arguments and its result."""

    function: tf.types.experimental.ConcreteFunction
    from_host: dict[str, str] = field(default_factory=dict)  # arguments, and where they come from
    read: list[tf.Tensor] = field(default_factory=list)  # outputs that Python reads


class Leave(BaseException):
    """Out of a script's main(), past whatever it catches."""


@dataclass
class Output:
    """In place of a tensor that the step returns: notices that Python reads it, then leaves."""

    call: Call
    tensor: tf.Tensor

    def numpy(self, *_: object) -> None:
        self.call.read.append(self.tensor)
        raise Leave

    __float__ = __int__ = __bool__ = __array__ = __format__ = numpy  # type: ignore[assignment]


@contextlib.contextmanager
def as_script(words: list[str]) -> Iterator[None]:
    """These words on the command line, nothing on the screen; afterwards everything is restored."""
    root, numbers = logging.getLogger(), (signal.SIGINT, signal.SIGTERM)
    before = root.handlers[:], root.level, [signal.getsignal(number) for number in numbers]
    argv, nowhere = mock.patch.object(sys, "argv", words), io.StringIO()
    try:
        with argv, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield
    finally:
        root.handlers[:], root.level = before[:2]
        for number, handler in zip(numbers, before[2]):
            signal.signal(number, handler)


def load(path: Path) -> ModuleType:
    """A file as a module; its main() does not run."""
    name = f"xray_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # tf.function looks there for the source
    with as_script([str(path)]), mock.patch.object(sys, "path", [str(path.parent), *sys.path]):
        spec.loader.exec_module(module)
    return module


def black_images(folder: Path, images: int) -> Path:
    """Data like MNIST's: what the images show does not matter."""
    path = folder / f"{images}.npz"
    sizes = {"train": images, "test": 100}
    arrays = {f"x_{name}": np.zeros((size, 28, 28), np.uint8) for name, size in sizes.items()}
    arrays |= {f"y_{name}": np.zeros(size, np.uint8) for name, size in sizes.items()}
    if not path.exists():
        np.savez(path, **arrays, **{data.SYNTHETIC_KEY: True})
    return path


class Script:
    """A stage's script. What it reads and puts on the device is the same for all its switches."""

    def __init__(self, path: Path) -> None:
        self.module = load(path)
        vars(self.module)["get_dataset"] = functools.cache(self.module.get_dataset)
        self.constants: dict[tuple, tf.Tensor] = {}

    def is_eager(self) -> bool:
        return not any(isinstance(value, Function) for value in vars(self.module).values())

    def options(self) -> dict[str, list[str]]:
        """All options, and what each of them may be where that is a choice."""
        with mock.patch.object(argparse.ArgumentParser, "parse_args", lambda parser: parser):
            parser = self.module.parse_args()
        return {action.dest: list(action.choices or []) for action in parser._actions}

    def step(self, words: list[str]) -> Call:
        """The first tf.function that main() calls with these words, and its arguments.

        On a machine with a GPU a tensor that was created eagerly is on the device, unless it is
        int32. Two kinds of arguments come from host memory: what tf.data made, and NumPy arrays.
        """
        calls: list[Call] = []
        batches: list[tf.Tensor] = []
        next_of, call_of, constant_of = OwnedIterator.__next__, Function.__call__, tf.constant

        def next_batch(iterator: OwnedIterator) -> Any:
            batch = next_of(iterator)
            batches.extend(tf.nest.flatten(batch))
            return batch

        def constant(value: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
            if not isinstance(value, np.ndarray) or value.nbytes < 1_000_000:
                return constant_of(value, *args, **kwargs)
            key = (value.ctypes.data, value.shape, value.dtype)
            if key not in self.constants:
                self.constants[key] = constant_of(value, *args, **kwargs)
            return self.constants[key]

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            its_own = getattr(function.python_function, "__module__", "") == self.module.__name__
            if not its_own or not tf.executing_eagerly():  # Keras's, or called by another
                return call_of(function, *args, **kwargs)
            if calls:  # the next step, and the result of the first was not read
                raise Leave
            calls.append(Call(function.get_concrete_function(*args, **kwargs)))
            given = inspect.signature(function.python_function).bind(*args, **kwargs).arguments
            given = tf.nest.flatten(list(given.values()))
            tensors = [leaf for leaf in given if isinstance(leaf, (tf.Tensor, np.ndarray))]
            for tensor, argument in zip(tensors, calls[0].function.inputs):
                if any(tensor is part for part in batches):
                    calls[0].from_host[argument.op.name] = "the batch, from tf.data"
                elif isinstance(tensor, np.ndarray):
                    calls[0].from_host[argument.op.name] = "a NumPy array, given at each call"
            outputs = calls[0].function.structured_outputs
            return tf.nest.map_structure(lambda tensor: Output(calls[0], tensor), outputs)

        keras.mixed_precision.set_dtype_policy("float32")  # the previous run may have set another
        with contextlib.ExitStack() as patches:
            patches.enter_context(as_script([str(self.module.__file__), *words]))
            patches.enter_context(mock.patch.object(OwnedIterator, "__next__", next_batch))
            patches.enter_context(mock.patch.object(Function, "__call__", call))
            patches.enter_context(mock.patch.object(tf, "constant", constant))
            try:
                self.module.main()
            except SystemExit as end:
                if end.code == 130:
                    raise KeyboardInterrupt from None
                problem = f"ended without a step: {end.code}"
            except (Leave, Exception) as error:
                problem = f"failed: {type(error).__name__}: {error}"
        if not calls:
            raise Problem(f"{self.module.__file__} {problem}")
        return calls[0]


def signatures(path: Path, name: str) -> list[tf.types.experimental.ConcreteFunction]:
    """Those that a reader's tf.function was called with, or its declared one."""
    try:
        module = load(path.resolve())
    except (Exception, SystemExit) as error:
        text = (str(error).splitlines() or [""])[0]
        raise Problem(f"{path} cannot be imported: {type(error).__name__}: {text}") from None
    function = getattr(module, name, None)
    if function is None:
        raise Problem(f"{path} has no function {name}")
    if not isinstance(function, Function):
        raise Problem(f"{name} in {path} is not a tf.function: put @tf.function before it")
    found = function._list_all_concrete_functions()
    if not found:
        raise Problem(
            f"{name} was not called while {path} was imported (not as __main__) and has no "
            "signature: add a call, or @tf.function(input_signature=[tf.TensorSpec(...)])"
        )
    return found
