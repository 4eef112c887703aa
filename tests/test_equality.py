"""The stages train the same model, step by step; and each is its neighbour plus one idea."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import LAST, SCRIPTS, load_script, run_main, script_id
from tfworkshop.stages import ROOT

DEVICE = ("06_optimized", "train_MNIST_device.py")
MIXED = [script for script in SCRIPTS if script[0] > "05"]
LR = 0.001
# 03 compiles by XLA whether asked or not, those before it never.
WAYS = [(script, "on" if script[0] == "03_xla" else "off") for script in SCRIPTS]
WAYS += [(script, "on") for script in SCRIPTS if script[0] > "04"]
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


def take_steps(script, batch, xla="off", policy="float32", dropout=False, steps=1):
    """Losses and weights after some steps of a stage on one batch."""
    module = load_script(script)
    module.hvd.init()
    model, optimizer = new_model(module, policy, dropout)
    data = [tf.constant(part) for part in batch]
    if script[0] > "06":
        order = tf.tile(tf.range(len(batch[1]))[tf.newaxis], [steps, 1])
        call = tf.function(module.train_steps, jit_compile=xla == "call")
        losses = call(model, optimizer, data, order, *tf.constant([0, steps]), xla != "off")
    else:
        switch = [xla == "on"] if script[0] > "04" else []
        losses = [module.train_step(model, optimizer, *data, *switch) for _ in range(steps)]
    return np.array(losses), [weight.numpy() for weight in model.weights]


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


def way_id(way: object) -> str:
    return script_id(way) if isinstance(way, tuple) else str(way)


@pytest.mark.parametrize(("script", "xla"), WAYS[1:], ids=way_id)
def test_float32_step_is_the_same(script, xla, batch, reference) -> None:
    assert_same_step(take_steps(script, batch, xla), reference, loss_rtol=2e-6, weight_atol=1e-7)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_step_is_close(policy: str, batch) -> None:
    """16 bits keep 2 to 3 digits: the loss to 1 %, the weights to a third of a step on average."""
    few = [part[:16] for part in batch]  # a CPU without 16-bit units takes its time
    reference = take_steps(SCRIPTS[0], few)
    for script in MIXED:
        step = take_steps(script, few, policy=policy)
        assert_same_step(step, reference, loss_rtol=0.01, weight_atol=LR / 3)
        assert all(weight.dtype == np.float32 for weight in step[1])


def test_a_different_step_is_noticed(batch, reference) -> None:
    images, labels = batch
    other = take_steps(SCRIPTS[0], (images, np.roll(labels, 1)))
    with pytest.raises(AssertionError):
        assert_same_step(other, reference, loss_rtol=2e-6, weight_atol=1e-7)


def test_eager_and_graph_agree_to_the_last_bit(batch) -> None:
    """With dropout on, three steps: the same random bits, the same arithmetic."""
    first, *others = (
        take_steps(script, batch, dropout=True, steps=3) for script in SCRIPTS if script[0] < "03"
    )
    assert len(others) == 3
    for losses, weights in others:
        np.testing.assert_array_equal(losses, first[0])
        for weight, expected in zip(weights, first[1]):
            np.testing.assert_array_equal(weight, expected)


def test_steps_in_one_call_are_the_steps_of_many(batch) -> None:
    """Four steps on four different batches, with dropout: one call, and four of one step each."""
    module, ends = load_script(LAST), []
    module.hvd.init()
    data, order = [tf.constant(part) for part in batch], tf.reshape(tf.range(64), [4, 16])
    for calls in ([(0, 4)], [(i, 1) for i in range(4)]):
        model, optimizer = new_model(module, "float32", dropout=True)
        module.train_step = tf.function(module.train_step.python_function)  # for this model
        call = tf.function(module.train_steps)
        for span in calls:
            call(model, optimizer, data, order, *tf.constant(span), False)
        ends.append([weight.numpy() for weight in model.weights])
    for one, many in zip(*ends):
        np.testing.assert_allclose(one, many, rtol=1e-5, atol=1e-6)


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
    for fused, plain in zip(*ends):
        np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-9)
    assert np.abs(ends[0][0] - 1).max() > LR


@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_device_dropout_drops_at_its_rate_and_keeps_the_mean(last, rate: float) -> None:
    keras.utils.set_random_seed(1)
    ones, layer = tf.ones([200, 9216]), last.DeviceDropout(rate)
    first, second = layer(ones, training=True).numpy(), layer(ones, training=True).numpy()
    assert set(np.unique(first)) == {0, np.float32(1 / (1 - rate))}
    assert abs(np.mean(first == 0) - rate) < 0.002  # 4 sigma of 1.8 million draws: 0.0015
    assert np.abs(np.mean(first == 0, axis=0) - rate).max() < 0.2  # no place is favoured
    assert 0.3 < np.mean(first != second) / (2 * rate * (1 - rate)) < 1.1  # drawn anew
    assert (layer(ones, training=False).numpy() == 1).all()
    half = last.DeviceDropout(rate, dtype="bfloat16")(tf.ones([3, 128]), training=True)
    assert half.dtype == tf.bfloat16 and half.shape == [3, 128]


def test_relu_after_the_pool_is_relu_before_it(batch) -> None:
    """The largest of four, then none below 0: in either order, to the last bit."""
    device, last = (new_model(load_script(s), "float32", dropout=True)[0] for s in (DEVICE, LAST))
    for weight, same in zip(device.weights, last.weights):
        np.testing.assert_array_equal(weight.numpy(), same.numpy())
    images = tf.constant(batch[0])
    plain = device.pool(device.conv_2(device.conv_1(images)))
    moved = tf.nn.relu(last.pool(last.conv_2(last.conv_1(images))))
    np.testing.assert_array_equal(plain.numpy(), moved.numpy())
    assert 0.05 < np.mean(plain.numpy() == 0) < 0.95


def test_06_shows_each_image_once_an_epoch_in_a_new_order(batch, last) -> None:
    args = SimpleNamespace(seed=1, batch_size=16, steps_per_epoch=4)
    orders = [last.shuffle(args, batch, epoch).numpy() for epoch in (0, 1, 0)]
    assert all(sorted(order.ravel()) == list(range(64)) for order in orders)
    assert (orders[0] != orders[1]).any() and (orders[0] == orders[2]).all()


@pytest.mark.parametrize(
    ("script", "policy"),
    [(s, "float32") for s in SCRIPTS] + [(s, "mixed_float16") for s in MIXED],
    ids=way_id,
)
def test_a_stage_builds_the_same_model_and_optimizer(
    script, policy: str, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What take_steps builds is what train_network builds: seed, weights, Adam, its rate."""
    module, built = load_script(script), []
    monkeypatch.setattr(module, "train_loop", lambda *args: built.append(args[1:3]))
    monkeypatch.setattr(module, "evaluate", lambda *args: None)
    options = ["--data", small, "--seed", 7]
    options += ["--precision", policy] if script in MIXED else []
    ended = run_main(module, *options)
    assert ended.status == 0, ended.stderr
    (model, optimizer), (ours, expected) = built[0], new_model(module, policy, dropout=True)
    for weight, same in zip(model.weights, ours.weights):
        np.testing.assert_array_equal(weight.numpy(), same.numpy())
    assert type(optimizer) is type(expected)
    found, wanted = optimizer.get_config(), {**expected.get_config(), "name": optimizer.name}
    for config in (found, wanted):  # names are counted up in a process
        config.get("inner_optimizer", {}).get("config", {}).pop("name", None)
    assert found == wanted


# --- the ladder's rule: a stage is the one before it, plus what its README names ---

HEADING = "# --- the rest is the same in every stage: skip it on a first reading ---"
# All lines, and those above the heading.
MOST_LINES = {
    **dict.fromkeys(SCRIPTS, (270, 200)),
    **{script: (300, 240) for script in SCRIPTS if "04" < script[0] < "06"},
    SCRIPTS[0]: (270, 165),
    DEVICE: (320, 240),
    LAST: (345, 240),
}
COMMON_LINES, NEW_LINES = 130, 45
ORDER = ["get_dataset", "fetch_batch", "MNISTClassifier", "compute_loss", "forward_pass"]
ORDER += ["train_loop", "train_network"]

FILES = [f"{folder}/{file}" for folder, file in SCRIPTS]
IOFIX = "fetch_batch make_batches train_loop train_network"
IDEAS = [  # what each rung changes, by name
    "",
    IOFIX,
    "train_step",
    "compute_gradients",
    "compute_gradients train_step train_loop parse_args",
    "ONEDNN_MAX_CPU_ISA MNISTClassifier compute_gradients train_step train_network best_precision "
    "parse_args",
    "make_batches shuffle fetch_batch train_steps train_loop train_network parse_args",
    "TF_ENABLE_ONEDNN_OPTS DeviceDropout MNISTClassifier FusedAdam train_step train_network "
    "parse_args",
]
RUNGS = [(a, b, set(idea.split())) for a, b, idea in zip(FILES, FILES[1:], IDEAS)]
NEIGHBOURS = [*RUNGS, (FILES[0], FILES[2], set(IOFIX.split()))]


def parts(path: str) -> tuple[str, str]:
    """A script's lesson, and what every stage has."""
    lesson, common = (ROOT / path).read_text().split(HEADING)
    return lesson, HEADING + common


def pieces(lesson: str) -> dict[str, str]:
    """Every top-level definition by name, and every other top-level statement by its text.
    Not the docstring, the stage's name and what asks for a line profile: they are its own."""
    found = {}
    for node in ast.parse(lesson).body[1:]:
        text = ast.unparse(node)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = text.replace("@profile\n", "")
        elif not re.match(r"STAGE = |from line_profiler import profile$", text):
            name = re.match(r"os\.environ\.setdefault\('(\w+)'", text)
            found[name[1] if name else text] = text
    return found


@pytest.mark.parametrize(("before", "after", "idea"), NEIGHBOURS, ids=[b for _, b, _ in NEIGHBOURS])
def test_only_the_idea_differs(before: str, after: str, idea: set[str]) -> None:
    old, new = (pieces(parts(path)[0]) for path in (before, after))
    assert {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)} == idea


@pytest.mark.parametrize(("before", "after", "idea"), RUNGS, ids=FILES[1:])
def test_the_readme_names_the_idea(before: str, after: str, idea: set[str]) -> None:
    folder, file = after.split("/")
    starts = ("Changed here:", f"Changed in {file}:")
    paragraphs = (ROOT / folder / "README.md").read_text().split("\n\n")
    (paragraph,) = [text for text in paragraphs if text.startswith(starts)]
    assert set(re.findall(r"`([^`]+)`", paragraph)) == idea


@pytest.mark.parametrize(("before", "after"), zip(FILES, FILES[1:]), ids=FILES[1:])
def test_a_rung_is_one_screen(before: str, after: str) -> None:
    diff = subprocess.run(["diff", before, after], cwd=ROOT, capture_output=True, text=True).stdout
    assert 0 < sum(line.startswith(">") for line in diff.splitlines()) <= NEW_LINES


def test_the_common_part_is_the_same_in_every_stage() -> None:
    (common,) = {parts(path)[1] for path in FILES}
    assert len(common.splitlines()) <= COMMON_LINES
    names = [node.name for node in ast.parse(common).body if isinstance(node, ast.FunctionDef)]
    assert names[0] == "stop" and names[-1] == "main"


def beside_horovod(lines: list[str], number: int) -> bool:
    """Whether a line has a Horovod comment, or stands under one: right below, or in its block."""
    comment = re.compile("#.* ?Horovod:")
    if comment.search(lines[number]) or comment.search(lines[number - 1]):
        return True
    indent = len(lines[number]) - len(lines[number].lstrip())
    for line in reversed(lines[:number]):
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            return bool(comment.search(line))
    return False


@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_a_stage_is_short_stands_alone_and_names_what_is_there_for_many(script) -> None:
    source = (ROOT / script[0] / script[1]).read_text()
    lines, (most, most_of_lesson) = source.splitlines(), MOST_LINES[script]
    assert len(lines) <= most and lines.index(HEADING) <= most_of_lesson
    assert not re.search(r"^\s*(from|import) (tfworkshop|tests|\.)", source, re.M)
    names = list(pieces(parts("/".join(script))[0]))
    assert [name for name in names if name in ORDER] == ORDER
    bare = [i for i, line in enumerate(lines) if "hvd." in line and not beside_horovod(lines, i)]
    assert [lines[i].strip() for i in bare] == []
