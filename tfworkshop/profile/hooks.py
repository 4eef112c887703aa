"""Tells the recorder what a program does: set into TensorFlow and Keras right after their import.

It runs inside the user's program: the standard library and the TensorFlow found there, no more.
Nothing here touches a device or a random number, and every hook hands on what it got.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tfworkshop.profile.recorder import EVALUATION, Recorder


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module as soon as that has been imported."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self.actions = actions
        self.is_searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.actions or self.is_searching:
            return None
        self.is_searching = True  # the others shall find it
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.is_searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            self.actions.pop(name)(module)

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


def install(recorder: Recorder) -> None:
    hook_keras = functools.partial(watch_keras, recorder)
    actions: dict[str, Callable[[ModuleType], None]] = {
        "tensorflow": functools.partial(watch_tensorflow, recorder),
        "keras": hook_keras,
        "tf_keras": hook_keras,
    }
    for name in actions.keys() & sys.modules.keys():  # imported while Python started
        actions.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(actions))


def in_main_thread() -> bool:
    """The program's own loop runs there; replicas and input pipelines have threads of their own."""
    return threading.current_thread() is threading.main_thread()


def replace(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Put a function around a method or function of TensorFlow or Keras."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def before(owner: Any, name: str, action: Callable[[], None]) -> None:
    """Call `action` before each call of owner.name."""

    def make(original: Any) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            action()
            return original(*args, **options)

        return called

    replace(owner, name, make)


# --- TensorFlow: functions, gradients, input ---


def watch_tensorflow(recorder: Recorder, tf: Any) -> None:
    recorder.tf = tf
    recorder.summary.tensorflow = tf.__version__
    watch_functions(recorder, type(tf.function(lambda: None)))
    watch_fetching(recorder, tf.data.Dataset)
    before(tf.GradientTape, "gradient", recorder.trains)
    start = functools.partial(give_way, recorder)
    before(tf.profiler.experimental, "start", start)
    before(tf.profiler.experimental.Profile, "__enter__", start)


def give_way(recorder: Recorder) -> None:
    """The program is about to record a profile of its own, and only one can run at a time."""
    recorder.cut_short()


def watch_functions(recorder: Recorder, function_class: Any) -> None:
    """Outermost calls of tf.functions; one that computes gradients is a step."""
    tracings: dict[int, int] = {}

    def make(original: Any) -> Callable[..., Any]:
        def called(self: Any, *args: Any, **options: Any) -> Any:
            if not in_main_thread():
                return original(self, *args, **options)
            code = getattr(self.python_function, "__code__", None) or id(self)
            name = getattr(self.python_function, "__name__", "a function")
            trains = code in recorder.progress
            if not recorder.begin(code, f"calls of the tf.function {name}", trains):
                return original(self, *args, **options)
            try:
                result = original(self, *args, **options)
            except BaseException:
                recorder.open = None
                raise
            count = self.experimental_get_tracing_count()
            if tracings.get(id(self)) != count:
                tracings[id(self)] = count
                recorder.traced()
            recorder.end(lambda: count_samples(recorder, (args, options)))
            return result

        return called

    replace(function_class, "__call__", make)


def watch_fetching(recorder: Recorder, dataset_class: Any) -> None:
    """Batches that Python fetches. The iterators' class is private: the first one shows it."""
    classes: set[type] = set()

    def fetch(original: Any) -> Callable[..., Any]:
        def called(self: Any) -> Any:
            batch = original(self)
            recorder.events += 1
            recorder.last_fetched = batch
            return batch

        return called

    def make(original: Any) -> Callable[..., Any]:
        def called(self: Any) -> Any:
            iterator = original(self)
            if type(iterator) not in classes:
                classes.add(type(iterator))
                replace(type(iterator), "__next__", fetch)
            return iterator

        return called

    replace(dataset_class, "__iter__", make)


def count_samples(recorder: Recorder, arguments: Any) -> int:
    """In the batch that a step got as its argument, or else in the one that Python fetched last."""
    nest = recorder.tf.nest
    return leading_dimension(nest, arguments) or leading_dimension(nest, recorder.last_fetched)


def leading_dimension(nest: Any, batch: Any) -> int:
    """The first dimension that all tensors share; 0 if there is none."""
    shapes = [getattr(item, "shape", None) for item in nest.flatten(batch)]
    sizes = {shape[0] for shape in shapes if shape is not None and len(shape) > 0}
    if len(sizes) != 1:
        return 0
    return sizes.pop() or 0  # a dimension can be unknown


# --- Keras: batches of fit, optimizers ---


def watch_keras(recorder: Recorder, keras: Any) -> None:
    if not hasattr(keras, "Model"):  # its import failed half-way: the program will say so
        return
    watch_fit(recorder, keras)
    # Keras 3 ends every way of updating in apply; tf_keras has only apply_gradients.
    optimizer = keras.optimizers.Optimizer
    watch_optimizer(
        recorder, optimizer, "apply" if hasattr(optimizer, "apply") else "apply_gradients"
    )


class Fit:
    """The call of model.fit that is running."""

    def __init__(self, model: Any, arguments: dict[str, Any]) -> None:
        self.key = id(model)
        self.name = f"batches of model.fit ({model.name})"
        self.model = model
        self.arguments = arguments

    def count_samples(self) -> int:
        """In one execution of the training function."""
        per_execution = getattr(self.model, "steps_per_execution", None)
        if per_execution is None:  # tf_keras has no public name for it
            per_execution = self.model._steps_per_execution
        return int(per_execution) * batch_size(self.arguments)


def batch_size(arguments: dict[str, Any]) -> int:
    """What fit was given, or its default for arrays; of a tf.data pipeline what batch() got."""
    x = arguments.get("x")
    if arguments.get("batch_size"):
        return int(arguments["batch_size"])
    if hasattr(x, "element_spec"):
        return pipeline_batch_size(x)
    is_array = hasattr(x, "shape") or isinstance(x, (list, tuple, dict))
    return 32 if is_array else 0


def pipeline_batch_size(dataset: Any) -> int:
    """Private names: the public shape of a batch is unknown where the last one may be smaller."""
    while dataset is not None:
        size = getattr(dataset, "_batch_size", None)
        if size is not None:
            return int(size)
        dataset = getattr(dataset, "_input_dataset", None)
    return 0


def watch_fit(recorder: Recorder, keras: Any) -> None:
    """Keras calls its list of callbacks around each batch, whatever train_step a model has."""
    running: list[Fit] = []

    def fit(original: Any) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def called(*args: Any, **options: Any) -> Any:
            arguments = signature.bind(*args, **options).arguments
            running.append(Fit(args[0], arguments))
            try:
                return original(*args, **options)
            finally:
                running.pop()
                recorder.open = None

        return called

    def begin_batch() -> None:
        if running:
            recorder.begin(running[-1].key, running[-1].name, trains=True)

    def begin_epoch() -> None:
        if running:
            recorder.restart(running[-1].key, running[-1].name)

    def evaluate() -> None:
        recorder.events += EVALUATION

    def end_batch(original: Any) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            original(*args, **options)  # other callbacks belong to the step
            if running:
                recorder.end(running[-1].count_samples)

        return called

    callbacks = keras.callbacks.CallbackList
    replace(keras.Model, "fit", fit)
    before(callbacks, "on_epoch_begin", begin_epoch)
    before(callbacks, "on_train_batch_begin", begin_batch)
    replace(callbacks, "on_train_batch_end", end_batch)
    before(callbacks, "on_test_begin", evaluate)
    before(callbacks, "on_predict_begin", evaluate)


def watch_optimizer(recorder: Recorder, optimizer_class: Any, update: str) -> None:
    """An update inside a function makes that a training step; one by itself ends a step."""

    def make(original: Any) -> Callable[..., Any]:
        def called(self: Any, *args: Any, **options: Any) -> Any:
            recorder.trains()
            eager = recorder.tf.executing_eagerly() and in_main_thread()
            name = f"updates by {type(self).__name__}"
            is_step = eager and recorder.begin(id(self), name, trains=True)
            result = original(self, *args, **options)
            if is_step:
                recorder.end(lambda: count_samples(recorder, ()))
            return result

        return called

    replace(optimizer_class, update, make)
