"""`./workshop xray`: what a GPU would see of each stage's step, or of the reader's own function."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

from rich.console import Console

from tfworkshop import terminal
from tfworkshop.files import check_output_file, save_record
from tfworkshop.problem import Problem
from tfworkshop.stages import Stage, choose
from tfworkshop.xray.quiet import quiet_cpp


def run(what: str, file: Path | None) -> int:
    """`what`: empty for all stages, the number of one, or FILE.py:FUNCTION."""
    script, _, function = what.rpartition(":")
    own, stages = script.endswith(".py"), []
    if what.endswith(".py"):
        raise Problem(f"name the function too: ./workshop xray {what}:FUNCTION")
    if not own:
        stages = choose([what.zfill(2) if what.isdigit() else what.rstrip("/")] if what else [])
    elif not Path(script).is_file():
        raise Problem(f"there is no file {script}")
    if file:
        check_output_file(file, ".json")
    console = terminal.console()
    console.width = min(console.width, 100)
    console.print("xray predicts placement, not time: what an A100 would do, found without a GPU.")
    with quiet_cpp():
        version = load_tensorflow()
        from tfworkshop.xray import predict, show

        cases = predict.own_function(Path(script), function) if own else of_stages(stages)
    show.show(cases, console)
    if file:
        save_record(file, {"tensorflow": version, "cases": cases})
        console.print(f"wrote {file}", markup=False)
    return 0


def load_tensorflow() -> str:
    """Its version, if the registry is for that version. A GPU, if there is one, is not used."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow"}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault(
        "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
    )  # as in 05, but before any stage is loaded
    import tensorflow as tf

    from tfworkshop.xray import kernels

    gc.freeze()  # objects from loading TensorFlow need not be scanned again
    gc.set_threshold(50_000, 20, 100)
    known = kernels.registry()["tensorflow"]
    if tf.__version__ != known:
        raise Problem(
            f"xray knows the GPU kernels of TensorFlow {known}, this is {tf.__version__}: "
            "tfworkshop/xray/dump_registry.py says how to get those"
        )
    return known


def of_stages(stages: list[Stage]) -> list[dict]:
    """The cases of these stages, in the ladder's order."""
    from tfworkshop.xray import predict

    cases: list[dict] = []
    console = Console(stderr=True)
    with console.status("xray") as status, tempfile.TemporaryDirectory() as folder:
        for stage in stages:
            status.update(f"xray: {stage.name}")
            cases += predict.script(stage.script, Path(folder))
    return cases
