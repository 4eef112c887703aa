"""The input pipeline study: run 1 waits for its input, run 4 does not; all show the same images."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import files_in, load_script, run_main, said
from tfworkshop.report import command as report
from tfworkshop.report.profile import Profile
from tfworkshop.report.screenshots import FOLDER

SCRIPT = (FOLDER.name, "input_pipeline.py")
COUNT, BATCH = 128, 16


@pytest.fixture(scope="module")
def pngs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first run finds no images, makes them, and the others find them."""
    return tmp_path_factory.mktemp("images") / "png"


@pytest.fixture(scope="module")
def module():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield load_script(SCRIPT)


@pytest.fixture(scope="module")
def profiles(module, mnist: Path, pngs: Path, tmp_path_factory) -> dict[int, Profile]:
    """What the report reads of each run."""
    logs = tmp_path_factory.mktemp("runs")
    for run in (1, 2, 3, 4):
        options = ["--run", run, "--count", COUNT, "--batch-size", BATCH, "--images", pngs]
        ended = run_main(module, *options, "--data", mnist, "--logdir", logs / f"run{run}")
        assert ended.status == 0, ended.stderr
    return {run: report.load(logs / f"run{run}")[0] for run in (1, 2, 3, 4)}


def test_run_1_is_input_bound_and_run_4_is_not(profiles) -> None:
    assert profiles[1].verdict["kind"] == "input-bound"
    assert profiles[4].verdict["kind"] not in ("input-bound", "unknown")
    assert profiles[1].steps.share("input") > 0.4
    assert profiles[4].steps.share("input") < 0.2
    waits = {run: p.steps.share("input") * p.steps.average_ms for run, p in profiles.items()}
    assert waits[4] < waits[1] / 2  # the whole step also depends on what 16 bit costs here


@pytest.mark.parametrize("run", [1, 2, 3, 4])
def test_the_second_epoch_is_profiled(profiles, run: int) -> None:
    steps = COUNT // BATCH
    names = [step.name for step in profiles[run].steps.per_step]
    assert names == [f"train {number}" for number in range(steps + 2, 2 * steps + 1)]


def test_each_run_works_as_it_says(profiles) -> None:
    """Read from the profiles: what ran in parallel, ahead, in 16 bit, and what ran at all."""
    names = {run: " ".join(op.name for op in found.operations) for run, found in profiles.items()}
    types = {run: {op.type for op in found.operations} for run, found in profiles.items()}
    assert "Parallel" not in names[1] and "Prefetch" not in names[1]
    for run in (2, 3, 4):
        assert "Prefetch" in names[run], names[run]
    assert "Parallel" in names[2] and "Parallel" in names[3]
    assert all("DecodePng" in types[run] for run in (1, 2, 3))
    assert not types[4] & {"DecodePng", "ReadFile", "AdjustSaturation"}


def test_runs_3_and_4_compute_in_16_bit(module) -> None:
    half = "float16" if module.tf.config.list_physical_devices("GPU") else "bfloat16"
    try:
        for run, precision in ((1, "float32"), (2, "float32"), (3, half), (4, half)):
            model = module.make_model(SimpleNamespace(run=run))
            assert {layer.compute_dtype for layer in model.layers[:-1]} == {precision}
            assert model.layers[-1].compute_dtype == "float32"
            module.keras.mixed_precision.set_dtype_policy("float32")
    finally:
        module.keras.mixed_precision.set_dtype_policy("float32")


def test_a_batch_is_augmented_as_its_images_would_be(module, monkeypatch) -> None:
    tf = module.tf
    images = tf.random.stateless_uniform((4, 8, 8, 3), seed=(1, 2))
    for factor in (0.1, 0.6, 1.0):
        monkeypatch.setattr(module, "FACTORS", (factor, factor))
        batch, _ = module.augment_batch(images, None)
        for image, augmented in zip(images, batch):
            expected = tf.image.adjust_saturation(tf.image.adjust_contrast(image, factor), factor)
            np.testing.assert_allclose(augmented, expected, atol=1e-6)


def test_images_of_a_batch_get_factors_of_their_own(module) -> None:
    image = module.tf.random.stateless_uniform((8, 8, 3), seed=(1, 2))
    batch, _ = module.augment_batch(module.tf.stack([image] * 16), None)
    assert len({float(module.tf.math.reduce_std(one)) for one in batch}) == 16


@pytest.mark.parametrize("run", [1, 2, 4])
def test_an_epoch_shows_every_image_once_and_the_next_in_another_order(
    module, profiles, pngs: Path, run: int
) -> None:
    files, _ = module.list_images(pngs, COUNT, None)
    args = SimpleNamespace(run=run, batch_size=BATCH)
    dataset = module.make_dataset(args, files, list(range(COUNT)))  # a label of its own for each
    orders = [np.concatenate([labels for _, labels in dataset]).tolist() for _ in range(2)]
    assert all(sorted(order) == list(range(COUNT)) for order in orders)
    assert orders[0] != orders[1]


def test_the_files_are_colour_images_of_the_right_digit(module, profiles, pngs, mnist) -> None:
    with np.load(mnist) as file:
        labels = file["y_train"][:COUNT]
    for path in list(pngs.glob("*/*.png"))[:10]:
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
    ("options", "line"),
    [
        ("--run 5", "argument --run: invalid choice: 5"),
        ("--batch-size 0", "--batch-size must be greater than 0"),
        ("--count 64 --batch-size 32", "--count at least four times as large"),
        ("--count 60000 --images new", "is more than the 2048 images"),
        ("--count 64 --batch-size 8 --images half", "half has 1 images, not 64: remove it"),
        ("--images new --data no.npz", "cannot read no.npz"),
    ],
)
def test_bad_input(options: str, line: str, module, small, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    half = tmp_path / "half" / "3"
    half.mkdir(parents=True)
    (half / "00001.png").touch()
    words = options.split() if "--data" in options else [*options.split(), "--data", small]
    ended = run_main(module, *words)
    assert ended.status == 1
    assert len(said(ended.stderr)) == 1 and line in ended.stderr
    assert files_in(tmp_path) == {"half/3/00001.png"} and not (tmp_path / "new").exists()
