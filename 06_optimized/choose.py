"""Which of 06's switches are fastest on this machine? Try them, and print the fastest.
Each trial runs train_MNIST.py: if it crashes or hangs, it is not chosen. The result is kept.
python train_MNIST.py --steps 100 $(python choose.py)        train with them
horovodrun -np 4 python train_MNIST.py $(python choose.py)   choose once, then start the ranks
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
CACHE = Path(os.environ.get("WORKSHOP_CACHE") or SCRIPT.parents[1] / ".cache") / "06_choices.json"
CPU, GPU = (30, 53), (90, 590)  # seconds per trial, seconds for all of them


def find_ways(batch_size):
    """This device's name, its limits, and the ways to try, safest first; without TensorFlow."""
    ask, gpu = ["nvidia-smi", "--query-gpu=compute_cap,name", "--format=csv,noheader"], ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
            gpu = subprocess.check_output(ask, stderr=subprocess.DEVNULL, text=True, timeout=30)
    if found := re.match(r"(\d+)\.\d+, (.+)", gpu):
        units = {"float32": 0, "mixed_bfloat16": 8, "mixed_float16": 7}  # from which capability on
        kinds = [kind for kind, least in units.items() if int(found[1]) >= least]
        pairs = [("off", 50), ("on", 50), ("on", 1), ("call", 50)]
        return found[2], GPU, [(xla, kind, n) for xla, n in pairs for kind in kinds]
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    model = [*re.findall("model name.*: (.*)", info), "CPU"][0]
    other = "50 --threads 1" if batch_size <= 8 else 1  # a tiny batch: too little work to share
    ways = [("off", "float32", 10), ("off", "float32", other), ("on", "float32", 10)]
    ways += [("off", "mixed_bfloat16", 10)] if re.search("avx512_bf16|amx_bf16", info) else []
    return f"{model}, {cores} cores, threads {os.environ.get('TF_NUM_INTRAOP_THREADS')}", CPU, ways


def try_out(command, limit, left):
    """One process, alone: its images per second or why there are none, and its last error line."""
    if left <= 0:
        return "not reached", ""
    alone = {k: v for k, v in os.environ.items() if not re.match("HOROVOD|OMPI|PMI|SLURM", k)}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "errors": "replace"}
    with tempfile.TemporaryDirectory() as folder:
        results, speed, said = Path(folder) / "results.json", "failed", ""
        process = subprocess.Popen([*command, "--results", results], env=alone, **pipes)
        try:
            said = process.communicate(timeout=min(limit, left))[1].strip()
        except subprocess.TimeoutExpired:
            speed = "too slow" if left >= limit else "not reached"
            process.terminate()  # asked to stop, it still writes its results
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)
        finally:  # after Ctrl+C too
            process.kill()
            process.wait()
        with contextlib.suppress(OSError, ValueError, KeyError):
            speed = json.loads(results.read_text())["img_per_s"] or speed
    stopped = process.returncode == 1 and "Traceback" not in said
    return speed, said.rpartition("\n")[2] if stopped else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = lambda message: sys.exit(f"choose.py: {message}")
    parser.add_argument("--batch-size", "--batch_size", type=int, default=64)
    parser.add_argument("--data", help="as for train_MNIST.py")
    parser.add_argument("--again", action="store_true", help="discard the kept result")
    args = parser.parse_args()
    device, (limit, total), ways = find_ways(args.batch_size)
    steps = 500 if (limit, total) == GPU else min(200, max(20, 2560 // max(1, args.batch_size)))
    command = [sys.executable, SCRIPT, "--steps", str(steps), "--batch-size", str(args.batch_size)]
    command += ["--data", args.data] if args.data else []
    versions = [d.version for n in ("tensorflow", "tensorflow-cpu") for d in distributions(name=n)]
    digest, cache, found, end = zlib.crc32(SCRIPT.read_bytes()), {}, {}, time.monotonic() + total
    key = f"{device}, TensorFlow {versions}, batch {args.batch_size}, script {digest:08x}: "
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):  # none, or not ours
        old = dict(json.loads(CACHE.read_text() if CACHE.is_file() else "{}"))
        cache = old if all(v in ("failed", "too slow") or 0 < v < 1e9 for v in old.values()) else {}
    trials = [f"--xla {xla} --precision {kind} --steps-per-call {rest}" for xla, kind, rest in ways]
    for name, way in [*zip(trials, trials), ("the first of these, again", trials[0])]:
        print(f"{name:<63}", end="", file=sys.stderr, flush=True)
        speed, stopped = None if args.again else cache.get(key + name), ""
        if speed is None:
            speed, stopped = try_out([*command, *way.split()], limit, end - time.monotonic())
        found[name] = speed
        print(f"{speed if isinstance(speed, str) else f'{speed:,.0f} img/s':>15}", file=sys.stderr)
        if stopped and name == trials[0]:  # if the safest way stops with a message, all would
            sys.exit(f"choose.py: {stopped}")
    works = {name: speed for name, speed in found.items() if isinstance(speed, float)}
    again = works.pop(name, None)
    if not works:
        sys.exit("choose.py: none of them finished in time; run train_MNIST.py alone to see why")
    if again and not 0.8 < again / works.get(trials[0], again) < 1.25:  # was it quiet?
        print("too noisy to keep. On a quiet machine: python choose.py --again", file=sys.stderr)
        found = {}
    cache |= {key + name: speed for name, speed in found.items() if speed != "not reached"}
    with contextlib.suppress(OSError):  # a read-only folder: the next run tries again
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
            (Path(folder) / "part").write_text(json.dumps(cache, indent=1))
            (Path(folder) / "part").replace(CACHE.resolve())
    print(next(way for way, speed in works.items() if speed >= 0.97 * max(works.values())))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        print("\nchoose.py: interrupted, nothing was saved", file=sys.stderr)
        sys.exit(130)
