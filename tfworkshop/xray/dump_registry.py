"""Write registry.json.gz: the kernels that TensorFlow's CUDA wheel has for a GPU.

That wheel registers them even on a machine without a GPU; the wheel for CPUs does not have them.
Needed once per TensorFlow version, in a separate environment (a download of 600 MB):

    python3 -m venv cuda && cuda/bin/pip install tensorflow==2.17.1
    cuda/bin/python tfworkshop/xray/dump_registry.py
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf
from tensorflow.python.framework import kernels

DEVICES = ("GPU", "DEFAULT", "XLA_GPU_JIT")


def main() -> None:
    if not tf.test.is_built_with_cuda():
        sys.exit("this TensorFlow has no GPU kernels: install the CUDA wheel, named tensorflow")
    tf.function(tf.negative, jit_compile=True)(1.0)  # XLA registers its kernels when first used
    found: dict[str, list] = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.device_type in DEVICES:
            allowed = {c.name: sorted(c.allowed_values.list.type) for c in kernel.constraint}
            fields = [kernel.device_type, kernel.label, kernel.priority, allowed]
            found.setdefault(kernel.op, []).append([*fields, sorted(kernel.host_memory_arg)])
    for fields in found.values():
        fields.sort(key=json.dumps)
    registry = {"tensorflow": tf.__version__, "kernels": found}
    text = json.dumps(registry, separators=(",", ":"), sort_keys=True)
    path = Path(__file__).with_name("registry.json.gz")
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    total = sum(map(len, found.values()))
    print(f"{path}: {total} kernels of {len(found)} operations, TensorFlow {tf.__version__}")


if __name__ == "__main__":
    main()
