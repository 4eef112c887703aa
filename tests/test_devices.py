"""What a stage makes of the devices it finds, with stand-ins for the GPUs."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from conftest import LAST, SCRIPTS, load_script, stages


def show_gpus(monkeypatch, module: ModuleType, gpus: list[str], capability=(8, 0)) -> list[str]:
    """What TensorFlow shows of a node's GPUs; returns which were made visible and may grow."""
    config, calls = module.tf.config, []
    details = {"compute_capability": capability}
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(config, "set_visible_devices", lambda gpu, kind: calls.append(gpu))
    for name, function in (
        ("set_memory_growth", lambda gpu, on: calls.append(gpu)),
        ("get_device_details", lambda gpu: {**details, "device_name": f"A100 {gpu}"}),
    ):
        monkeypatch.setattr(config.experimental, name, function)
    return calls


@pytest.mark.parametrize(
    ("gpus", "launcher", "chosen"),
    [
        (["a", "b", "c"], None, ["a", "b", "c"]),  # each rank sees all of them
        (["a"], "0", ["a", "a", "a"]),  # the launcher shows each rank its own
        (["a", "b"], None, ["a", "b", "no GPU is left"]),
    ],
)
def test_ranks_share_out_the_gpus_of_a_node(gpus, launcher, chosen, monkeypatch) -> None:
    module = load_script(LAST)
    if launcher:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", launcher)
    else:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for rank, expected in enumerate(chosen):
        calls = show_gpus(monkeypatch, module, gpus)
        horovod = SimpleNamespace(size=lambda: 3)
        horovod.rank = horovod.local_rank = lambda r=rank: r
        monkeypatch.setattr(module, "hvd", horovod)
        if expected.startswith("no GPU"):
            with pytest.raises(SystemExit, match=expected):
                module.choose_device()
            assert calls == []
        else:
            assert module.choose_device() == f"A100 {expected}"
            assert calls == [expected, expected]


@pytest.mark.parametrize(
    ("capability", "precision"),
    [
        ((9, 0), "mixed_bfloat16"),
        ((8, 0), "mixed_bfloat16"),
        ((7, 5), "mixed_float16"),
        ((6, 1), "float32"),
    ],
)
def test_a_gpus_default_is_xla_and_16_bit_where_it_has_units(
    capability, precision, monkeypatch
) -> None:
    for script in stages("04", "05", "06"):
        module = load_script(script)
        show_gpus(monkeypatch, module, ["gpu a"], capability)
        monkeypatch.setattr("sys.argv", ["train_MNIST.py"])
        args = module.parse_args()
        assert args.xla == "on"
        assert getattr(args, "precision", precision) == precision


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ("fpu avx512f avx512_bf16", "mixed_bfloat16"),
        ("fpu amx_bf16 amx_tile", "mixed_bfloat16"),
        ("fpu avx2 avx512f avx512_fp16", "float32"),
        (None, "float32"),  # not Linux
    ],
)
def test_a_cpus_default_is_no_xla_and_16_bit_where_it_has_units(
    flags, precision, monkeypatch
) -> None:
    for script in stages("04", "05", "06"):
        module = load_script(script)
        show_gpus(monkeypatch, module, [])
        monkeypatch.setattr("sys.argv", ["train_MNIST.py"])
        with monkeypatch.context() as patch:
            patch.setattr(Path, "exists", lambda path: flags is not None)
            patch.setattr(Path, "read_text", lambda path: f"flags : {flags}\n")
            args = module.parse_args()
        assert args.xla == "off"
        assert getattr(args, "precision", precision) == precision


def test_without_a_gpu_it_is_a_cpu(monkeypatch) -> None:
    for script in SCRIPTS:
        module = load_script(script)
        show_gpus(monkeypatch, module, [])
        assert module.choose_device().startswith("CPU, ")
