"""The stages train the same model, step by step; and each is its neighbour plus one idea."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import SCRIPTS, load_script, run_main, script_id
from tools.stages import ROOT

LAST = ("06_optimized", "train_MNIST.py")
UP_TO_04 = [script for script in SCRIPTS if script[0] < "05"]
LR = 0.001
MAX_LINES = {"06": 640}  # it also chooses; the others are one sitting to read


@pytest.fixture(scope="module")
def batch(mnist: Path) -> tuple[np.ndarray, np.ndarray]:
    """64 real images, as they are stored."""
    with np.load(mnist) as file:
        return file["x_train"][:64, ..., np.newaxis], file["y_train"][:64]


@pytest.fixture(autouse=True)
def float32_again() -> Iterator[None]:
    yield
    keras.mixed_precision.set_dtype_policy("float32")


def new_model(module: ModuleType, policy: str, dropout: bool):
    keras.mixed_precision.set_dtype_policy(policy)
    keras.utils.set_random_seed(7)
    model = module.MNISTClassifier()
    model(np.zeros([1, 28, 28, 1], np.float32))
    if not dropout:
        model.dropout_1.rate = model.dropout_2.rate = 0
    optimizer = getattr(module, "FusedAdam", keras.optimizers.Adam)(LR)  # 06 has its own
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def take_steps(script, batch, policy="float32", dropout=False, steps=1, xla=False):
    """Losses and weights after some steps of a stage on one batch."""
    module = load_script(script)
    module.hvd.init()
    model, optimizer = new_model(module, policy, dropout)
    images, labels = batch
    if script == LAST:
        order = tf.tile(tf.range(64, dtype=tf.int64)[tf.newaxis], [steps, 1])
        data = module.put_on_device(images, labels)
        losses = module.train_steps(model, optimizer, data, order, *tf.constant([0, steps]), xla)
    else:
        pair = tf.constant(images, tf.float32) / 255, tf.constant(labels, tf.int32)
        losses = [module.train_step(model, optimizer, *pair) for _ in range(steps)]
    return np.array(losses), [weight.numpy() for weight in model.weights], module


@pytest.fixture(scope="module")
def reference(batch):
    """The baseline's step, without dropout: what all others must reproduce."""
    return take_steps(SCRIPTS[0], batch)


def assert_same_step(step, reference, loss_rtol: float, weight_atol: float) -> None:
    """Adam divides a gradient by its size: rounding shows most where the gradient is almost 0."""
    np.testing.assert_allclose(step[0], reference[0], rtol=loss_rtol)
    for weight, expected in zip(step[1], reference[1]):
        difference = np.abs(weight - expected)
        assert np.mean(difference) <= weight_atol, np.mean(difference)
        assert np.max(difference) <= 2 * LR


@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_float32_step_is_the_same(script, batch, reference) -> None:
    assert_same_step(take_steps(script, batch), reference, loss_rtol=2e-6, weight_atol=1e-7)


def test_06_compiled_by_xla_takes_the_same_step(batch, reference) -> None:
    step = take_steps(LAST, batch, xla=True)
    assert_same_step(step, reference, loss_rtol=2e-6, weight_atol=1e-7)
    assert step[2].compute_gradients_xla.experimental_get_tracing_count() == 1


def test_fused_adam_follows_adam(batch) -> None:
    """Ten steps on the same gradients: the one kernel and the dozen operations agree."""
    module = load_script(LAST)
    rng = np.random.default_rng(1)
    gradients = [tf.constant(rng.normal(size=[50]) * 10.0**-i, tf.float32) for i in range(10)]
    ends = []
    for optimizer in (module.FusedAdam(LR), keras.optimizers.Adam(LR)):
        weight = keras.Variable(np.ones([50], np.float32))
        optimizer.build([weight])
        for gradient in gradients:
            optimizer.apply_gradients([(gradient, weight)])
        ends.append([variable.numpy() for variable in (weight, *optimizer.variables)])
    for fused, plain in zip(*ends):
        np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-9)
    assert np.abs(ends[0][0] - 1).max() > LR


def test_byte_dropout_drops_at_its_rate_and_keeps_the_mean() -> None:
    module = load_script(LAST)
    keras.utils.set_random_seed(1)
    ones = tf.ones([200, 9216])
    for rate in (0.25, 0.5):
        layer = module.ByteDropout(rate)
        first, second = layer(ones, training=True).numpy(), layer(ones, training=True).numpy()
        assert set(np.unique(first)) == {0, np.float32(1 / (1 - rate))}
        assert abs(np.mean(first == 0) - rate) < 0.002  # 4 sigma of 1.8 million draws: 0.0015
        assert np.abs(np.mean(first == 0, axis=0) - rate).max() < 0.2  # no place is favoured
        assert 0.3 < np.mean(first != second) / (2 * rate * (1 - rate)) < 1.1  # drawn anew
        assert (layer(ones, training=False).numpy() == 1).all()


def test_a_different_step_is_noticed(batch, reference) -> None:
    images, labels = batch
    other = take_steps(SCRIPTS[0], (images, np.roll(labels, 1)))
    with pytest.raises(AssertionError):
        assert_same_step(other, reference, loss_rtol=2e-6, weight_atol=1e-7)


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s[0] < "03"], ids=script_id)
def test_eager_and_graph_agree_to_the_last_bit(script, batch) -> None:
    """With dropout on, three steps: the same random bits, the same arithmetic."""
    first = take_steps(SCRIPTS[0], batch, dropout=True, steps=3)
    other = take_steps(script, batch, dropout=True, steps=3)
    np.testing.assert_array_equal(other[0], first[0])
    for weight, expected in zip(other[1], first[1]):
        np.testing.assert_array_equal(weight, expected)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("script", [s for s in SCRIPTS if s[0] > "05"], ids=script_id)
def test_mixed_precision_step_is_close(script, policy: str, batch, reference) -> None:
    """16 bits keep 2 to 3 digits: the loss to 1 %, the weights to a third of a step on average."""
    step = take_steps(script, batch, policy)
    assert_same_step(step, reference, loss_rtol=0.01, weight_atol=LR / 3)
    assert all(weight.dtype == np.float32 for weight in step[1])


@pytest.mark.parametrize(
    ("script", "policy"),
    [(s, "float32") for s in SCRIPTS] + [(s, "mixed_float16") for s in SCRIPTS if s[0] > "05"],
    ids=lambda value: script_id(value) if isinstance(value, tuple) else value,
)
def test_a_stage_builds_the_same_model_and_optimizer(
    script, policy: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What take_steps builds is what train_network builds: seed, weights, Adam, its rate."""
    monkeypatch.chdir(tmp_path)
    module, built = load_script(script), []
    monkeypatch.setattr(module, "train_loop", lambda *args: built.append(args[1:3]))
    monkeypatch.setattr(module, "evaluate", lambda *args: None)
    options = ["--data", small, "--lr", LR, "--seed", 7]
    options += ["--precision", policy] if script[0] > "05" else []
    options += ["--xla", "off", "--steps-per-call", 10] if script == LAST else []
    assert run_main(module, *options).status == 0
    (model, optimizer), (ours, expected) = built[0], new_model(module, policy, dropout=True)
    for weight, same in zip(model.weights, ours.weights):
        np.testing.assert_array_equal(weight.numpy(), same.numpy())
    assert type(optimizer) is type(expected)
    found, wanted = optimizer.get_config(), {**expected.get_config(), "name": optimizer.name}
    if script == LAST:  # its rate falls from --lr to nothing
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        assert inner._learning_rate(0) == np.float32(LR) and inner._learning_rate(320) == 0
        for config in (found, wanted):
            config.get("inner_optimizer", {"config": config})["config"].pop("learning_rate")
            config.get("inner_optimizer", {}).pop("config", None)
    assert found == wanted


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s[0] > "02"], ids=script_id)
def test_the_step_is_traced_once(script, batch) -> None:
    module = take_steps(script, batch, steps=5)[2]
    traced = module.train_steps if script == LAST else module.train_step
    assert traced.experimental_get_tracing_count() == 1
    if "06" > script[0] >= "03":
        assert module.compute_gradients.experimental_get_tracing_count() == 1


def test_a_shorter_call_of_06_is_not_traced_again(batch) -> None:
    module = load_script(LAST)
    module.hvd.init()
    model, optimizer = new_model(module, "float32", dropout=True)
    data = module.put_on_device(*batch)
    args = SimpleNamespace(seed=1, batch_size=16, steps_per_epoch=4)
    for epoch, first, count in ((0, 0, 3), (0, 3, 1), (1, 0, 4)):
        order = module.shuffle(args, data[0], epoch)
        module.train_steps(model, optimizer, data, order, *tf.constant([first, count]), False)
    assert module.train_steps.experimental_get_tracing_count() == 1


def test_steps_in_one_call_are_the_steps_of_many(batch) -> None:
    """Four steps on four different batches: one call, and four of one step each."""
    ends = []
    for calls in ([(0, 4)], [(i, 1) for i in range(4)]):
        module = load_script(LAST)
        module.hvd.init()
        model, optimizer = new_model(module, "float32", dropout=True)
        data, order = (
            module.put_on_device(*batch),
            tf.reshape(tf.range(64, dtype=tf.int64), [4, 16]),
        )
        for first, count in calls:
            module.train_steps(model, optimizer, data, order, *tf.constant([first, count]), False)
        ends.append([weight.numpy() for weight in model.weights])
    for one, many in zip(*ends):
        np.testing.assert_allclose(one, many, rtol=1e-5, atol=1e-6)


def test_06_shows_each_image_once_an_epoch_in_a_new_order(batch) -> None:
    module = load_script(LAST)
    args = SimpleNamespace(seed=1, batch_size=16, steps_per_epoch=4)
    orders = [module.shuffle(args, batch[0], epoch).numpy() for epoch in (0, 1, 0)]
    assert all(sorted(order.ravel()) == list(range(64)) for order in orders)
    assert (orders[0] != orders[1]).any() and (orders[0] == orders[2]).all()


# --- the ladder's rule: a stage is the one before it, plus what its README names ---

IOFIX = "train_MNIST_iofix.py"
NEIGHBOURS = [
    ("00_baseline/train_MNIST.py", "01_line_profiler/train_MNIST.py", "Changed in train_MNIST.py:"),
    ("00_baseline/train_MNIST.py", f"01_line_profiler/{IOFIX}", f"Changed in {IOFIX}:"),
    (f"01_line_profiler/{IOFIX}", "02_tf_function/train_MNIST.py", "Changed here:"),
    ("02_tf_function/train_MNIST.py", "03_xla/train_MNIST.py", "Changed here:"),
    ("03_xla/train_MNIST.py", "04_tf_profiler/train_MNIST.py", "Changed here:"),
    ("04_tf_profiler/train_MNIST.py", "05_reduced_precision/train_MNIST.py", "Changed here:"),
    ("05_reduced_precision/train_MNIST.py", "06_optimized/train_MNIST.py", "Changed here:"),
]
# Top-level lines that may differ: the stage's name, its switch for XLA, an import it needs.
FREE = re.compile(
    r"STAGE = |XLA = |(CACHE|CHOICES|TUNING_S|SHORT) = |if __name__ == '__mp_main__'|"
    r"import (contextlib|multiprocessing|threading)$|"
    r"from (line_profiler|statistics|typing) import \w+$"
)


def pieces(path: Path) -> dict[str, str]:
    """Every top-level definition by name, and every other top-level statement by its text."""
    found = {}
    for node in ast.parse(path.read_text()).body[1:]:  # the docstring is a stage's own
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            decorators = [d for d in node.decorator_list if ast.unparse(d) != "profile"]
            node.decorator_list = decorators
            found[node.name] = ast.dump(node)
        elif not FREE.match(ast.unparse(node)):
            text = ast.unparse(node)
            name = re.match(r"os\.environ\.setdefault\('(\w+)'|(\w+) = tf\.function", text)
            found[name[1] or name[2] if name else text] = text
    return found


def named(readme: Path, start: str) -> set[str]:
    """The names in backticks of the README's paragraph that starts so."""
    (paragraph,) = [text for text in readme.read_text().split("\n\n") if text.startswith(start)]
    return set(re.findall(r"`([^`]+)`", paragraph))


@pytest.mark.parametrize(("before", "after", "start"), NEIGHBOURS, ids=lambda text: text[:12])
def test_only_what_the_readme_names_differs(before: str, after: str, start: str) -> None:
    old, new = pieces(ROOT / before), pieces(ROOT / after)
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    assert changed == named((ROOT / after).parent / "README.md", start)


def test_common_functions_stand_in_the_same_order() -> None:
    orders = [list(pieces(ROOT / folder / file)) for folder, file in SCRIPTS]
    common = set(orders[0]).intersection(*orders[1:])
    assert {"MNISTClassifier", "compute_loss", "get_dataset", "fetch_batch"} <= common
    assert {"forward_pass", "train_loop", "train_network"} <= common
    assert len({tuple(name for name in order if name in common) for order in orders}) == 1


@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_a_stage_stands_alone(script) -> None:
    source = (ROOT / script[0] / script[1]).read_text()
    assert "# Horovod:" in source
    assert len(source.splitlines()) < MAX_LINES.get(script[0][:2], 400)
    assert not re.search(r"^(from|import) (tools|tests)", source, re.M)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and "hvd." in ast.unparse(node.test):
            near = source.splitlines()[node.lineno - 5 : node.lineno]
            assert any("# Horovod:" in line for line in near), ast.unparse(node.test)
