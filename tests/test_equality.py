"""The stages train the same model, step by step, and 06's own layers compute what Keras's do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import LAST, SCRIPTS, Script, load_script, run_main, script_id, stages

pytestmark = [pytest.mark.slow, pytest.mark.both_stacks]

MIXED = stages("05", "06")
DEVICE = MIXED[1]
LR = 0.001
# 03 compiles by XLA whether asked or not, those before it never.
WAYS = [(script, "on" if script in stages("03") else "off") for script in SCRIPTS]
WAYS += [(script, "on") for script in stages("04", "05", "06")]
WAYS += [(LAST, "call")]


@pytest.fixture(scope="module")
def batch(mnist: Path) -> tuple[np.ndarray, np.ndarray]:
    """64 real images, as a stage has them."""
    with np.load(mnist) as file:
        images = file["x_train"][:64, ..., np.newaxis].astype(np.float32) / 255
        return images, file["y_train"][:64].astype(np.int64)


@pytest.fixture(autouse=True)
def float32_again() -> Iterator[None]:
    yield
    keras.mixed_precision.set_dtype_policy("float32")


def new_model(module: ModuleType, policy: str = "float32", dropout: bool = True):
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


def take_steps(script: Script, batch, xla="off", policy="float32", dropout=False, steps=1):
    """Losses and weights after some steps of a stage on one batch."""
    module = load_script(script)
    module.hvd.init()
    model, optimizer = new_model(module, policy, dropout)
    data = [tf.constant(part) for part in batch]
    if script in stages("06"):
        order = tf.tile(tf.range(len(batch[1]))[tf.newaxis], [steps, 1])
        call = tf.function(module.train_steps, jit_compile=xla == "call")
        losses = call(model, optimizer, data, order, xla != "off")
    else:
        switch = [xla == "on"] if script in stages("04", "05") else []
        losses = [module.train_step(model, optimizer, *data, *switch) for _ in range(steps)]
    return np.array(losses), [weight.numpy() for weight in model.trainable_variables]


def assert_same_step(step, reference, loss_rtol: float, weight_atol: float) -> None:
    """Adam divides a gradient by its size: rounding shows most where the gradient is almost 0."""
    np.testing.assert_allclose(step[0], reference[0], rtol=loss_rtol)
    for weight, expected in zip(step[1], reference[1], strict=True):
        difference = np.abs(weight - expected)
        assert np.mean(difference) <= weight_atol
        assert np.max(difference) <= 2 * LR


@pytest.fixture(scope="module")
def reference(batch):
    """The baseline's step, without dropout: what all others must reproduce."""
    return take_steps(SCRIPTS[0], batch)


def way_id(way: object) -> str:
    return script_id(way) if isinstance(way, tuple) else str(way)


@pytest.mark.parametrize(("script", "xla"), WAYS[1:], ids=way_id)
def test_float32_step_is_the_same(script, xla, batch, reference) -> None:
    assert_same_step(take_steps(script, batch, xla), reference, loss_rtol=2e-6, weight_atol=1e-7)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("script", MIXED, ids=script_id)
def test_mixed_precision_step_is_close(script: Script, policy: str, batch) -> None:
    """16 bits keep 2 to 3 digits: the loss to 1 %, the weights to a third of a step on average."""
    few = [part[:16] for part in batch]  # a CPU without 16-bit units takes its time
    step = take_steps(script, few, policy=policy)
    assert_same_step(step, take_steps(SCRIPTS[0], few), loss_rtol=0.01, weight_atol=LR / 3)
    assert {weight.dtype for weight in step[1]} == {np.dtype(np.float32)}


def test_eager_and_graph_agree_to_the_last_bit(batch) -> None:
    """With dropout, three steps: the same random bits, the same losses. In a graph, TensorFlow 2.21
    computes Adam's update in another order, which may move a weight to a neighbouring float."""
    scripts = stages("00", "01", "02")
    steps = [take_steps(script, batch, dropout=True, steps=3) for script in scripts]
    for losses, weights in steps[1:]:
        np.testing.assert_array_equal(losses, steps[0][0])
        for weight, expected in zip(weights, steps[0][1], strict=True):
            np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-7)


def test_steps_in_one_call_are_the_steps_of_many(batch) -> None:
    """Four steps on four different batches, with dropout: one call, and four of one step each."""
    module = load_script(LAST)
    module.hvd.init()
    data = [tf.constant(part) for part in batch]
    order = tf.reshape(tf.range(64), [4, 16])
    ends = []
    for calls in ([order], tf.split(order, 4)):
        model, optimizer = new_model(module)
        module.train_step = tf.function(module.train_step.python_function)  # for this model
        call = tf.function(module.train_steps)
        for rows in calls:
            call(model, optimizer, data, rows, False)
        ends.append([weight.numpy() for weight in model.trainable_variables])
    for one, many in zip(*ends, strict=True):
        np.testing.assert_allclose(one, many, rtol=1e-5, atol=1e-6)


WAYS_TO_BUILD = [(script, "float32") for script in SCRIPTS]
WAYS_TO_BUILD += [(script, "mixed_float16") for script in MIXED]


@pytest.mark.parametrize(("script", "policy"), WAYS_TO_BUILD, ids=way_id)
def test_a_stage_builds_the_same_model_and_optimizer(script, policy, small, monkeypatch) -> None:
    """What take_steps builds is what train_network builds: seed, weights, Adam, its rate."""
    module = load_script(script)
    built = []
    monkeypatch.setattr(module, "train_loop", lambda *args: built.extend(args[1:3]))
    monkeypatch.setattr(module, "evaluate", lambda *args: None)
    options = ["--data", small, "--seed", 7]
    if script in MIXED:
        options += ["--precision", policy]
    assert run_main(module, *options).status == 0
    model, optimizer = built
    expected_model, expected_optimizer = new_model(module, policy)
    for weight, expected in zip(model.weights, expected_model.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), expected.numpy())
    assert type(optimizer) is type(expected_optimizer)
    inner = [getattr(one, "inner_optimizer", one) for one in (optimizer, expected_optimizer)]
    configs = [{**one.get_config(), "name": ""} for one in inner]  # Keras numbers the names
    assert configs[0] == configs[1]


# --- the parts of 06 that are its own ---


@pytest.fixture(scope="module")
def last() -> ModuleType:
    return load_script(LAST)


def test_fused_adam_follows_adam(last) -> None:
    """Ten steps on the same gradients: the one kernel and the dozen operations agree."""
    rng = np.random.default_rng(1)
    gradients = [tf.constant(rng.normal(size=[50]) * 10.0**-i, tf.float32) for i in range(10)]
    ends = []
    for optimizer in (last.FusedAdam(LR), keras.optimizers.Adam(LR)):
        weight = keras.Variable(np.ones([50], np.float32))
        optimizer.build([weight])
        for gradient in gradients:
            optimizer.apply_gradients([(gradient, weight)])
        ends.append([variable.numpy() for variable in (weight, *optimizer.variables)])
    for fused, plain in zip(*ends, strict=True):
        np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-9)
    assert np.abs(ends[0][0] - 1).max() > LR


@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_device_dropout_drops_at_its_rate_and_keeps_the_mean(last, rate: float) -> None:
    keras.utils.set_random_seed(1)
    layer = last.DeviceDropout(rate)
    ones = tf.ones([200, 9216])
    dropped = layer(ones, training=True).numpy()
    assert set(np.unique(dropped)) == {0, np.float32(1 / (1 - rate))}
    assert abs(np.mean(dropped == 0) - rate) < 0.002  # 4 sigma of 1.8 million draws: 0.0015
    assert np.abs(np.mean(dropped == 0, axis=0) - rate).max() < 0.2  # no place is favoured
    assert (layer(ones, training=False).numpy() == 1).all()
    half = last.DeviceDropout(rate, dtype="bfloat16")(tf.ones([3, 128]), training=True)
    assert half.dtype == tf.bfloat16 and half.shape == [3, 128]


def test_device_dropout_has_a_seed_of_its_own(last) -> None:
    """Each layer and each step draws other bits; the same seed, the same ones again."""

    def draw() -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        layers = [last.DeviceDropout(0.5), last.DeviceDropout(0.5)]
        for layer in layers:
            layer.seed_generator = None  # Keras's: its state differs from version to version
        return [layer(tf.ones([64, 64]), training=True).numpy() for layer in layers * 2]

    drawn = draw()
    for i, bits in enumerate(drawn):
        for other in drawn[:i]:
            assert 0.4 < np.mean(bits != other) < 0.6
    np.testing.assert_array_equal(drawn, draw())


def test_relu_after_the_pool_is_relu_before_it(batch) -> None:
    """The largest of four, then none below 0: in either order, to the last bit."""
    device, last = (new_model(load_script(script))[0] for script in (DEVICE, LAST))
    last.set_weights(device.get_weights()[: len(last.get_weights())])
    images = tf.constant(batch[0])
    plain = device.pool(device.conv_2(device.conv_1(images))).numpy()
    moved = tf.nn.relu(last.pool(last.conv_2(last.conv_1(images)))).numpy()
    np.testing.assert_array_equal(plain, moved)
    assert 0.05 < np.mean(plain == 0) < 0.95
