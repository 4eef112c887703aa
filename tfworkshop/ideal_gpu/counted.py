"""Runs a stage's script on the ideal GPU and writes what the device was given to do at each step.

    python counted.py COUNTS.json train_MNIST.py --steps 100 ...

Standard library only: it runs beside the stage, in the stage's own process.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

# In the order of `enum counter` in ideal_gpu.h; the last one is in nanoseconds.
NAMES = ["tensorflow_kernels", "xla_kernels", "library_calls", "graph_launches", "graph_kernels"]
NAMES += ["to_device", "to_device_bytes", "to_host", "to_host_bytes", "on_device"]
NAMES += ["on_device_bytes", "memsets", "waits", "modules", "submissions", "calls", "own_ns"]


class Device:
    """The counters of the stand-in that this process has loaded."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def counts(self) -> dict[str, int]:
        values = (ctypes.c_uint64 * len(NAMES))()
        assert self.library.ideal_gpu_counts(values) == len(NAMES)
        return dict(zip(NAMES, values))

    def mark(self, text: str) -> None:
        """A line in the log, where there is one (IDEAL_GPU_LOG)."""
        self.library.ideal_gpu_mark(text.encode())


def load_stage(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("stage", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["stage"] = module
    spec.loader.exec_module(module)
    return module


def count_steps(stage: Any, device: Device) -> list[tuple[str, dict[str, int]]]:
    """Have the stage note the counters whenever it logs a step: its kind, and the sums so far."""
    history: list[tuple[str, dict[str, int]]] = []
    log_step = stage.log_step

    def count_and_log(args: Any, steps: Any, step: int, *rest: Any, **options: Any) -> None:
        device.mark(f"step {step}")
        counts = device.counts()
        log_step(args, steps, step, *rest, **options)
        history.append((steps[-1][0], counts))

    stage.log_step = count_and_log
    return history


def average(history: list[tuple[str, dict[str, int]]]) -> dict[str, float]:
    """Per step, from the last step that was not timed to the last one."""
    kinds = [kind for kind, _ in history]
    timed = [i for i, kind in enumerate(kinds) if kind == "timed"]
    if not timed or timed[0] == 0:
        return {}
    first, last = history[timed[0] - 1][1], history[timed[-1]][1]
    steps = timed[-1] - timed[0] + 1
    return {name: (last[name] - first[name]) / steps for name in NAMES}


def main() -> None:
    output = Path(sys.argv[1])
    sys.argv = sys.argv[2:]
    device = Device()
    stage = load_stage(Path(sys.argv[0]))
    history = count_steps(stage, device)
    try:
        stage.main()
    finally:
        device.mark("end")
        if stage.hvd.rank() == 0:
            output.write_text(json.dumps(average(history), indent=1))


if __name__ == "__main__":
    main()
