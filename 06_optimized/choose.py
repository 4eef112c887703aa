"""Try 06's switches on this machine, and print the fastest.

Each trial runs train_MNIST.py: one that crashes or hangs is not chosen. The result is kept.

    python train_MNIST.py --steps 100 $(python choose.py)         # train with them
    horovodrun -np 4 python train_MNIST.py $(python choose.py)    # choose once, for all ranks
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from importlib.metadata import distributions
from pathlib import Path

SCRIPT = Path(__file__).resolve().with_name("train_MNIST.py")
CACHE_FOLDER = Path(os.environ.get("WORKSHOP_CACHE") or SCRIPT.parents[1] / ".cache")
CACHE = CACHE_FOLDER / "06_choices.json"
AGAIN = "the first of these, again"


class Device:
    """What to try here: the ways, safest first, and how long it may take."""

    def __init__(self, name, ways, steps, trial_seconds, total_seconds):
        self.name = name
        self.ways = ways
        self.steps = steps
        self.trial_seconds = trial_seconds
        self.total_seconds = total_seconds


def find_device(batch_size):
    gpu = ask_nvidia_smi()
    if gpu:
        name, capability = gpu
        return Device(name, gpu_ways(capability), 500, trial_seconds=90, total_seconds=590)
    steps = min(200, max(20, 2560 // batch_size))
    return Device(cpu_name(), cpu_ways(batch_size), steps, trial_seconds=30, total_seconds=53)


def ask_nvidia_smi():
    """Name and major compute capability of the first GPU, or None; without loading TensorFlow."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    command = ["nvidia-smi", "--query-gpu=compute_cap,name", "--format=csv,noheader"]
    try:
        output = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"(\d+)\.\d+, (.+)", output)
    if match is None:
        return None
    return match[2], int(match[1])


def gpu_ways(capability):
    precisions = ["float32"]
    if capability >= 8:
        precisions.append("mixed_bfloat16")
    if capability >= 7:
        precisions.append("mixed_float16")
    ways = []
    for xla, steps_per_call in [("off", 50), ("on", 50), ("on", 1), ("call", 50)]:
        for precision in precisions:
            ways.append(switches(xla, precision, steps_per_call))
    return ways


def cpu_ways(batch_size):
    ways = [switches("off", "float32", 10)]
    if batch_size <= 8:
        ways.append(switches("off", "float32", 50) + " --threads 1")  # too little work to share
    else:
        ways.append(switches("off", "float32", 1))
    # XLA never was the fastest on a CPU: stage 04 shows why.
    if re.search("avx512_bf16|amx_bf16", read_cpuinfo()):
        ways.append(switches("off", "mixed_bfloat16", 10))
    return ways


def switches(xla, precision, steps_per_call):
    return f"--xla {xla} --precision {precision} --steps-per-call {steps_per_call}"


def read_cpuinfo():
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def cpu_name():
    """The model and what decides its speed: cores and threads."""
    match = re.search("model name.*: (.*)", read_cpuinfo())
    model = match[1] if match else "CPU"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("TF_NUM_INTRAOP_THREADS")
    return f"{model}, {cores} cores, threads {threads}"


# --- trials ---


def run_trial(command, seconds):
    """One training in its own process: images per second, or "failed", "too slow"; its stderr."""
    launcher = re.compile("HOROVOD|OMPI|PMI|SLURM")  # here, one process trains alone
    environment = {k: v for k, v in os.environ.items() if not launcher.match(k)}
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        process = subprocess.Popen(
            [*command, "--results", results],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        outcome = "failed"
        errors = ""
        try:
            errors = process.communicate(timeout=seconds)[1]
        except subprocess.TimeoutExpired:
            outcome = "too slow"
            process.terminate()  # it finishes its step and still writes what it has measured
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)
        finally:  # after Ctrl+C, too
            process.kill()
            process.wait()
        if results.exists():
            speed = json.loads(results.read_text())["img_per_s"]
            return speed or outcome, errors
    return outcome, errors


def try_all(device, command, known):
    """The outcome of each way; `known` holds those of earlier runs."""
    deadline = time.monotonic() + device.total_seconds
    outcomes = {}
    for name in [*device.ways, AGAIN]:
        way = device.ways[0] if name == AGAIN else name
        print(f"{name:<63}", end="", file=sys.stderr, flush=True)
        seconds = min(device.trial_seconds, deadline - time.monotonic())
        if name in known:
            outcome = known[name]
        elif seconds <= 0:
            outcome = "not reached"
        else:
            outcome, errors = run_trial([*command, *way.split()], seconds)
            if outcome == "too slow" and seconds < device.trial_seconds:
                outcome = "not reached"
            if outcome == "failed" and name == device.ways[0]:  # then all of them would fail
                print(outcome, file=sys.stderr)
                sys.exit(errors or "choose.py: train_MNIST.py failed without a word")
        outcomes[name] = outcome
        text = outcome if isinstance(outcome, str) else f"{outcome:,.0f} img/s"
        print(f"{text:>15}", file=sys.stderr)
    return outcomes


def is_quiet(outcomes, first_way):
    """Whether the first way was about as fast when it was tried again."""
    first, again = outcomes[first_way], outcomes[AGAIN]
    if isinstance(first, str) or isinstance(again, str):
        return True  # nothing to compare
    return 0.8 < again / first < 1.25


# --- what is kept ---


def cache_key(device, batch_size):
    """Whatever changes the outcome is in it."""
    names = ("tensorflow", "tensorflow-cpu")
    versions = [package.version for name in names for package in distributions(name=name)]
    digest = zlib.crc32(SCRIPT.read_bytes())
    return f"{device.name}, TensorFlow {versions}, batch {batch_size}, script {digest:08x}"


def read_cache():
    try:
        return json.loads(CACHE.read_text())
    except (OSError, ValueError):
        return {}


def write_cache(cache):
    try:
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        partial = CACHE.with_suffix(f".{os.getpid()}.part")
        partial.write_text(json.dumps(cache, indent=1))
        partial.replace(CACHE)
    except OSError:
        pass  # a read-only folder: the next run tries again


def positive_int(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", "--batch_size", type=positive_int, default=64)
    parser.add_argument("--data", help="as for train_MNIST.py")
    parser.add_argument("--again", action="store_true", help="discard the kept result")
    return parser.parse_args()


def main():
    args = parse_args()
    device = find_device(args.batch_size)
    command = [sys.executable, str(SCRIPT), "--steps", str(device.steps)]
    command += ["--batch-size", str(args.batch_size)]
    if args.data:
        command += ["--data", args.data]
    cache = read_cache()
    key = cache_key(device, args.batch_size)
    known = {} if args.again else cache.get(key, {})

    outcomes = try_all(device, command, known)
    if is_quiet(outcomes, device.ways[0]):
        temporary = ("failed", "not reached")
        cache[key] = {name: what for name, what in outcomes.items() if what not in temporary}
        write_cache(cache)
    else:
        print("too noisy to keep. On a quiet machine: python choose.py --again", file=sys.stderr)

    speeds = {way: outcomes[way] for way in device.ways if not isinstance(outcomes[way], str)}
    if not speeds:
        sys.exit("choose.py: none of them finished in time; run train_MNIST.py alone to see why")
    fastest = max(speeds.values())
    for way, speed in speeds.items():
        if speed >= 0.97 * fastest:  # the safest of those that are about as fast
            print(way)
            return


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl+C: no trial is left running
    try:
        main()
    except KeyboardInterrupt:
        print("\nchoose.py: interrupted, nothing was saved", file=sys.stderr)
        sys.exit(130)
