"""The input pipeline study: run 1 waits for its input, run 4 does not; all show the same images."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import files_in, load_script, run_main, run_script, said
from tfworkshop.report import reader
from tfworkshop.report.profile import Profile
from tfworkshop.report.screenshots import FOLDER

pytestmark = pytest.mark.slow

SCRIPT = (FOLDER.name, "input_pipeline.py")
COUNT, BATCH = 128, 16


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first run finds no images, makes them, and the others find them."""
    return tmp_path_factory.mktemp("images") / "png"


@pytest.fixture(scope="module")
def module():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield load_script(SCRIPT)


@pytest.fixture(scope="module")
def profiles(mnist: Path, images: Path, warm_python: Path, tmp_path_factory) -> dict[int, Profile]:
    """What the report reads of each run."""
    folder = tmp_path_factory.mktemp("runs")
    for run in (1, 2, 3, 4):
        options = ["--run", run, "--count", COUNT, "--batch-size", BATCH, "--images", images]
        process = run_script(SCRIPT, *options, "--data", mnist, cwd=folder, python=warm_python)
        assert process.returncode == 0, process.stderr
    return {run: reader.load(folder / "logs" / f"run{run}")[0] for run in (1, 2, 3, 4)}


def test_run_1_is_input_bound_and_run_4_is_not(profiles) -> None:
    assert profiles[1].verdict["kind"] == "input-bound"
    assert profiles[4].verdict["kind"] not in ("input-bound", "unknown")
    waits = [profiles[run].steps.share("input") for run in (1, 4)]
    assert waits[0] > 0.4 and waits[1] < 0.2


def test_the_second_epoch_is_profiled(profiles) -> None:
    steps = COUNT // BATCH
    for profile in profiles.values():
        names = [step.name for step in profile.steps.per_step]
        assert names == [f"train {number}" for number in range(steps + 2, 2 * steps + 1)]


def test_each_run_works_as_it_says(profiles) -> None:
    """Read from the profiles: what ran in parallel, ahead, and what ran at all."""
    names = {run: " ".join(op.name for op in found.operations) for run, found in profiles.items()}
    types = {run: {op.type for op in found.operations} for run, found in profiles.items()}
    assert [("Prefetch" in names[run]) for run in (1, 2, 3, 4)] == [False, True, True, True]
    assert [("Parallel" in names[run]) for run in (1, 2, 3)] == [False, True, True]
    assert all("DecodePng" in types[run] for run in (1, 2, 3))
    assert not types[4] & {"DecodePng", "ReadFile", "AdjustSaturation"}


def test_runs_3_and_4_compute_in_16_bit(module) -> None:
    half = "float16" if module.tf.config.list_physical_devices("GPU") else "bfloat16"
    try:
        for run, precision in ((1, "float32"), (2, "float32"), (3, half), (4, half)):
            layers = module.make_model(Namespace(run=run)).layers
            assert {layer.compute_dtype for layer in layers[:-1]} == {precision}
            assert layers[-1].compute_dtype == "float32"
    finally:
        module.keras.mixed_precision.set_dtype_policy("float32")


def test_a_batch_is_augmented_as_its_images_would_be(module, monkeypatch) -> None:
    tf = module.tf
    images = tf.random.stateless_uniform((4, 8, 8, 3), seed=(1, 2))
    same = tf.stack([images[0]] * 16)
    assert (
        len({float(tf.math.reduce_std(image)) for image in module.augment_batch(same, None)[0]}) > 9
    )
    for factor in (0.1, 0.6, 1.0):
        monkeypatch.setattr(module, "FACTORS", (factor, factor))
        batch, _ = module.augment_batch(images, None)
        for image, augmented in zip(images, batch):
            expected = tf.image.adjust_saturation(tf.image.adjust_contrast(image, factor), factor)
            np.testing.assert_allclose(augmented, expected, atol=1e-6)


@pytest.mark.parametrize("run", [1, 2, 4])
def test_an_epoch_shows_every_image_once(module, profiles, images: Path, run: int) -> None:
    paths, _ = module.list_images(images, COUNT, None)
    args = Namespace(run=run, batch_size=BATCH)
    dataset = module.make_dataset(args, paths, list(range(COUNT)))  # a label of its own for each
    orders = [np.concatenate([labels for _, labels in dataset]).tolist() for _ in range(2)]
    assert all(sorted(order) == list(range(COUNT)) for order in orders)
    assert orders[0] != orders[1]


def test_the_files_are_colour_images_of_the_right_digit(module, profiles, images, mnist) -> None:
    with np.load(mnist) as file:
        labels = file["y_train"][:COUNT]
    for path in list(images.glob("*/*.png"))[:10]:
        assert int(path.parent.name) == labels[int(path.stem)]
        image, _ = module.read_image(str(path), 0)
        assert image.shape == (192, 192, 3)  # the middle 75 % of 256
        assert np.ptp(image, axis=-1).max() > 0.01


def test_making_images_leaves_all_of_them_or_none(module, small, tmp_path, monkeypatch) -> None:
    def disk_full(image):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.tf.io, "encode_png", disk_full)
    with pytest.raises(SystemExit, match=r"cannot write .*: No space left"):
        module.list_images(tmp_path / "png", 8, small)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "status", "line"),
    [
        ("--run 5", 2, "argument --run: invalid choice: 5"),
        ("--count 64 --batch-size 32", 2, "--count must be at least four times --batch-size"),
        ("--count 60000 --images new", 1, "is more than the 2048 images"),
        ("--count 64 --batch-size 8 --images half", 1, "half has 1 images, not 64: remove it"),
    ],
)
def test_bad_input(options, status: int, line: str, module, small, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half" / "3").mkdir(parents=True)
    (tmp_path / "half" / "3" / "00001.png").touch()
    ended = run_main(module, *options.split(), "--data", small)
    assert ended.status == status and line in said(ended.stderr)[-1]
    assert files_in(tmp_path) == {"half/3/00001.png"}
