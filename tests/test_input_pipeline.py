"""The input pipeline study: run 1 waits for its input, run 4 does not; all show the same images."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import files_in, load_script, run_script, said
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
        module = load_script(SCRIPT)
        module.stage.hvd.init()
        yield module


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


def test_making_images_leaves_all_of_them_or_none(module, small, tmp_path, monkeypatch) -> None:
    def disk_full(image):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.tf.io, "encode_png", disk_full)
    with pytest.raises(SystemExit, match=r"cannot write .*: No space left"):
        module.list_images(tmp_path / "png", 8, small)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_other_images_is_refused(warm_python: Path, tmp_path: Path) -> None:
    (tmp_path / "half" / "3").mkdir(parents=True)
    (tmp_path / "half" / "3" / "00001.png").touch()
    options = ["--count", 64, "--batch-size", 8, "--images", "half"]
    process = run_script(SCRIPT, *options, cwd=tmp_path, python=warm_python)
    assert process.returncode == 1
    assert "half has 1 images, not 64: remove it" in said(process.stderr)[-1]
    assert files_in(tmp_path) == {"half/3/00001.png"}
