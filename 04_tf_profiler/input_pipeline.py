"""Four runs of one Keras training whose images come from PNG files: where does the time go?

python input_pipeline.py --run 1    # images are read and prepared one after the other
python input_pipeline.py --run 2    # in parallel, and while the model trains
python input_pipeline.py --run 3    # also with the model in mixed precision
python input_pipeline.py --run 4    # also prepared once and cached; the random part per batch
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

# Some virtual machines advertise AMX but trap it; AVX-512 is the safe choice for 16 bit.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import train_MNIST as stage
from collect import TensorBoardWithSteps
from train_MNIST import keras, tf

stage.STAGE = Path(__file__).name  # the name before an error message

PNG_SIZE = 256  # side length of an image in a file: a small photograph
MODEL_SIZE = 64  # side length of what the model sees
FACTORS = (0.1, 1.0)  # random contrast and saturation: from almost none to all of it


# --- the files ---


def make_images(folder, count, data):
    """MNIST's first images as coloured PNG files, folder/label/number.png."""
    images, labels, _, _ = stage.get_dataset(data)
    if count > len(images):
        stage.fail(f"--count {count} is more than the {len(images)} images of {data}")
    colours = np.random.default_rng(1).uniform(0.2, 1, (count, 1, 1, 3))
    stage.make_folder(folder.parent)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    try:
        for number, colour in enumerate(colours):
            image = 255 * tf.image.resize(images[number], (PNG_SIZE, PNG_SIZE)) * colour
            png = tf.io.encode_png(tf.cast(image, tf.uint8)).numpy()
            file = partial / str(labels[number]) / f"{number:05}.png"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(png)
        partial.rename(folder)  # only now: the folder is complete or absent
    except OSError as error:
        stage.fail(f"cannot write {folder}: {error.strerror}")
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def list_images(folder, count, data):
    """The files, created if they are not there yet, and their labels."""
    if not folder.exists():
        print(f"making {count} images in {folder}", flush=True)
        make_images(folder, count, data)
    files = sorted(folder.glob("[0-9]/*.png"))
    if len(files) != count:
        stage.fail(f"{folder} has {len(files)} images, not {count}: remove it to make it again")
    paths = [str(file) for file in files]
    labels = [int(file.parent.name) for file in files]
    return paths, labels


# --- the input pipeline ---


def read_image(path, label):
    """The middle of the image: this part of the work never changes."""
    image = tf.io.decode_png(tf.io.read_file(path), channels=3)
    image = tf.image.central_crop(image, central_fraction=0.75)
    return tf.image.convert_image_dtype(image, tf.float32), label


def augment_image(image, label):
    """A different contrast and saturation each time: the model should not learn these."""
    image = tf.image.random_contrast(image, *FACTORS)
    return tf.image.random_saturation(image, *FACTORS), label


def resize(image, label):
    return tf.image.resize(image, (MODEL_SIZE, MODEL_SIZE)), label


def augment_batch(images, labels):
    """augment_image for a whole batch, still with separate factors for every image."""
    shape = (tf.shape(images)[0], 1, 1, 1)
    contrast = tf.random.uniform(shape, *FACTORS)
    saturation = tf.random.uniform(shape, *FACTORS)
    mean = tf.reduce_mean(images, axis=(1, 2), keepdims=True)
    images = (images - mean) * contrast + mean
    brightest = tf.reduce_max(images, axis=-1, keepdims=True)  # the V of HSV, which stays
    return (images - brightest) * saturation + brightest, labels


def make_dataset(args, paths, labels):
    """The batches of one epoch, as this run prepares them."""
    dataset = tf.data.Dataset.from_tensor_slices((paths, labels))
    if args.run == 1:
        dataset = dataset.shuffle(len(paths), seed=1)
        dataset = dataset.map(read_image)
        dataset = dataset.map(augment_image)
        dataset = dataset.map(resize)
        dataset = dataset.batch(args.batch_size, drop_remainder=True)
        options = tf.data.Options()  # by default TensorFlow would parallelise some of this
        options.experimental_optimization.apply_default_optimizations = False
        return dataset.with_options(options)

    parallel = tf.data.AUTOTUNE
    if args.run in (2, 3):
        dataset = dataset.shuffle(len(paths), seed=1)
        dataset = dataset.map(read_image, num_parallel_calls=parallel)
        dataset = dataset.map(augment_image, num_parallel_calls=parallel)
        dataset = dataset.map(resize, num_parallel_calls=parallel)
        dataset = dataset.batch(args.batch_size, drop_remainder=True)
    else:
        dataset = dataset.map(read_image, num_parallel_calls=parallel)
        dataset = dataset.map(resize, num_parallel_calls=parallel)
        dataset = dataset.cache()
        dataset = dataset.shuffle(len(paths), seed=1)  # after the cache: a new order every epoch
        dataset = dataset.batch(args.batch_size, drop_remainder=True)
        dataset = dataset.map(augment_batch, num_parallel_calls=parallel)
    return dataset.prefetch(tf.data.AUTOTUNE)


# --- the model ---


def make_model(args):
    if args.run >= 3:
        has_gpu = bool(tf.config.list_physical_devices("GPU"))
        keras.mixed_precision.set_dtype_policy("mixed_float16" if has_gpu else "mixed_bfloat16")
    model = keras.Sequential(
        [
            keras.layers.Input((MODEL_SIZE, MODEL_SIZE, 3)),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, dtype="float32"),  # a softmax needs the precision
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    return model


# --- main ---


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=int, choices=(1, 2, 3, 4), default=1)
    parser.add_argument("--logdir", type=Path, help="where the profile goes; default logs/runN")
    parser.add_argument("--batch-size", type=stage.positive_int, default=32)
    parser.add_argument("--count", type=stage.positive_int, default=1024, help="images to make")
    parser.add_argument("--images", type=Path, help="their folder; default data/png_COUNT")
    parser.add_argument("--data", type=Path, default=stage.default_data())
    args = parser.parse_args()
    if args.batch_size > args.count // 4:
        parser.error("--count must be at least four times --batch-size")
    if args.logdir is None:
        args.logdir = Path("logs") / f"run{args.run}"
    if args.images is None:
        args.images = Path(__file__).resolve().parents[1] / "data" / f"png_{args.count}"
    return args


def main():
    args = parse_args()
    stage.hvd.init()
    if stage.hvd.size() > 1:
        stage.fail("this is for one process")
    stage.make_folder(args.logdir)
    keras.utils.set_random_seed(1)
    paths, labels = list_images(args.images, args.count, args.data)
    dataset = make_dataset(args, paths, labels)
    steps = len(dataset)
    window = (steps + 2, min(steps + 21, 2 * steps))  # of the second epoch: the cache is full
    callback = TensorBoardWithSteps(str(args.logdir), profile_batch=window)
    make_model(args).fit(dataset, epochs=2, callbacks=[callback], verbose=2)
    print(f"profile recorded; to see it: ../workshop report {args.logdir}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
