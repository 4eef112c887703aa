"""What a stage makes of the devices it finds. The GPUs are stand-ins: no GPU is needed."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import LAST, Script, load_script, script_id, stages

pytestmark = pytest.mark.slow

FOUR = ["gpu a", "gpu b", "gpu c", "gpu d"]


@pytest.fixture(scope="module")
def modules() -> dict[Script, ModuleType]:
    return {script: load_script(script) for script in stages("04", "05", "06")}


def show_gpus(monkeypatch, module: ModuleType, gpus: list[str], capability=(8, 0)) -> dict:
    """Let TensorFlow list these GPUs; returns what is then set."""
    chosen: dict[str, str] = {}
    details = {"compute_capability": capability, "device_name": "A100"}
    config = module.tf.config
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(config, "set_visible_devices", lambda gpu, kind: chosen.update(visible=gpu))
    monkeypatch.setattr(
        config.experimental, "set_memory_growth", lambda gpu, on: chosen.update(grows=gpu)
    )
    monkeypatch.setattr(config.experimental, "get_device_details", lambda gpu: details)
    return chosen


@pytest.mark.parametrize("rank", range(5))
def test_ranks_share_out_the_gpus_of_a_node(modules, monkeypatch, rank: int) -> None:
    module = modules[LAST]
    hvd = Namespace(rank=lambda: rank, local_rank=lambda: rank, size=lambda: 5)
    monkeypatch.setattr(module, "hvd", hvd)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    chosen = show_gpus(monkeypatch, module, FOUR)
    if rank < 4:
        assert module.choose_device() == "A100"
        assert chosen == {"visible": FOUR[rank], "grows": FOUR[rank]}
    else:
        with pytest.raises(SystemExit, match="rank 4: no GPU is left: this node shows 4"):
            module.choose_device()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")  # a launcher may show each rank only its own
    chosen = show_gpus(monkeypatch, module, ["gpu c"])
    assert module.choose_device() == "A100"
    assert chosen == {"visible": "gpu c", "grows": "gpu c"}


def parse_defaults(module: ModuleType, monkeypatch) -> Namespace:
    monkeypatch.setattr(sys, "argv", ["train_MNIST.py"])
    return module.parse_args()


GPUS = {(9, 0): "mixed_bfloat16", (8, 0): "mixed_bfloat16", (7, 5): "mixed_float16"}
GPUS |= {(6, 1): "float32"}


@pytest.mark.parametrize("script", stages("04", "05", "06"), ids=script_id)
@pytest.mark.parametrize("capability", GPUS)
def test_a_gpus_default_is_xla_and_16_bit_where_it_has_units(
    modules, monkeypatch, script, capability
) -> None:
    show_gpus(monkeypatch, modules[script], FOUR, capability)
    args = parse_defaults(modules[script], monkeypatch)
    assert args.xla == "on"
    assert script in stages("04") or args.precision == GPUS[capability]


CPUS = {"fpu avx512f avx512_bf16": "mixed_bfloat16", "fpu amx_bf16 amx_tile": "mixed_bfloat16"}
CPUS |= {"fpu avx2 avx512f avx512_fp16": "float32"}


@pytest.mark.parametrize("script", stages("04", "05", "06"), ids=script_id)
@pytest.mark.parametrize("flags", CPUS)
def test_a_cpus_default_is_no_xla_and_16_bit_where_it_has_units(
    modules, monkeypatch, script, flags
) -> None:
    show_gpus(monkeypatch, modules[script], [])
    monkeypatch.setattr(Path, "read_text", lambda path: f"flags : {flags}\n")
    args = parse_defaults(modules[script], monkeypatch)
    assert args.xla == "off"
    assert script in stages("04") or args.precision == CPUS[flags]
    assert modules[script].choose_device().startswith("CPU, ")
