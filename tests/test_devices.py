"""What a stage makes of the devices it finds, told by stand-ins: no GPU is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from conftest import LAST, SCRIPTS, load_script, stages

Ability = tuple[int, int]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load_script(LAST)


class Node:
    """A node's GPUs, their driver, and the ranks that look at them, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        self.patch, self.module = monkeypatch, module
        self.errors = {"cuInit": 0, "cuDeviceGetUuid_v2": 0}
        self.calls: dict[str, str] = {}

    def see(self, gpus: list[str], ability: Ability = (8, 0)) -> None:
        """What TensorFlow shows of them."""
        config = self.module.tf.config
        details = {"compute_capability": ability}
        names = lambda gpu: {**details, "device_name": f"A100 {gpu}"}  # noqa: E731
        grow = lambda gpu, on: self.calls.update(grows=gpu)  # noqa: E731
        show = lambda gpu, kind: self.calls.update(visible=gpu)  # noqa: E731
        self.patch.setattr(config, "list_physical_devices", lambda kind: gpus)
        self.patch.setattr(config, "set_visible_devices", show)
        self.patch.setattr(config.experimental, "set_memory_growth", grow)
        self.patch.setattr(config.experimental, "get_device_details", names)

    def uuid(self, visible: list[str], name: object, number: int) -> int:
        """As the driver does: by the number among the GPUs that this process may see."""
        if self.errors["cuDeviceGetUuid_v2"] == 0:
            name.raw = visible[number].encode().ljust(16, b"\0")
        return self.errors["cuDeviceGetUuid_v2"]

    def ranks(self, *visible: list[str]) -> list[str]:
        """The outcome of every rank, given the GPUs it sees: its device, or its one line."""
        sent: dict[int, bytes] = {}

        def gather(rank: int, name: bytes) -> list[bytes]:
            sent[rank] = name
            return list(sent.values())

        for _ in range(2):  # an exchange: in the second round all have sent
            outcomes = []
            for rank, mine in enumerate(visible):
                self.see(mine)
                self.calls.clear()
                hvd = SimpleNamespace(
                    rank=lambda rank=rank: rank,
                    local_rank=lambda rank=rank: rank,
                    size=lambda: len(visible),
                    allgather_object=lambda name, rank=rank: gather(rank, name),
                )
                cuda = SimpleNamespace(
                    cuInit=lambda flags: self.errors["cuInit"],
                    cuDeviceGetUuid_v2=lambda name, i, mine=mine: self.uuid(mine, name, i),
                )
                self.patch.setattr(self.module, "hvd", hvd)
                libraries = {"libcuda.so.1": cuda}
                self.patch.setattr(self.module.ctypes, "CDLL", libraries.__getitem__)
                try:
                    outcomes.append(self.module.choose_device())
                    assert self.calls["visible"] == self.calls["grows"]
                    assert outcomes[-1] == f"A100 {self.calls['visible']}"
                except SystemExit as end:
                    outcomes.append(str(end.code))
                    assert self.calls == {}
        return outcomes


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Node:
    return Node(monkeypatch, module)


def refused(rank: int, sees: int) -> str:
    told = f"another rank has the same GPU (this one sees {sees}): start fewer ranks"
    return f"06_optimized (rank {rank}): {told}"


def test_ranks_share_out_the_gpus_of_a_node(node: Node) -> None:
    four = ["gpu a", "gpu b", "gpu c", "gpu d"]
    assert node.ranks(four, four, four, four) == [f"A100 {gpu}" for gpu in four]
    assert node.ranks(four, four) == ["A100 gpu a", "A100 gpu b"]


def test_a_launcher_may_show_each_rank_its_own_gpu(node: Node) -> None:
    """CUDA_VISIBLE_DEVICES names one for each: all are number 0, and all are different."""
    assert node.ranks(["gpu a"], ["gpu b"], ["gpu c"]) == ["A100 gpu a", "A100 gpu b", "A100 gpu c"]


def test_more_ranks_than_gpus_is_one_line(node: Node) -> None:
    assert node.ranks(["gpu a"], ["gpu a"]) == [refused(0, 1), refused(1, 1)]
    two = ["gpu a", "gpu b"]
    assert node.ranks(two, two, two) == [refused(0, 2), "A100 gpu b", refused(2, 2)]


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGetUuid_v2"])
def test_a_driver_that_does_not_answer_is_no_false_alarm(node: Node, call: str) -> None:
    node.errors[call] = 999
    two = ["gpu a", "gpu b"]
    assert node.ranks(two, two) == ["A100 gpu a", "A100 gpu b"]


def test_one_process_asks_no_driver(node: Node, monkeypatch) -> None:
    monkeypatch.setattr(node.module.ctypes, "CDLL", None)
    node.module.hvd.init()
    node.see(["gpu a"])
    assert node.module.choose_device() == "A100 gpu a"


# --- the switches that follow from the device ---


def defaults(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.setattr(sys, "argv", ["train_MNIST.py"])
    return module.parse_args()


@pytest.mark.parametrize(
    ("ability", "precision"),
    [
        ((9, 0), "mixed_bfloat16"),
        ((8, 0), "mixed_bfloat16"),
        ((7, 5), "mixed_float16"),
        ((7, 0), "mixed_float16"),
        ((6, 1), "float32"),
    ],
)
def test_a_gpus_default_is_xla_and_16_bit_where_it_has_units(
    ability: Ability, precision: str, monkeypatch
) -> None:
    for script in stages("04", "05", "06"):
        node = Node(monkeypatch, load_script(script))
        node.see(["gpu a"], ability)
        args = defaults(node.module, monkeypatch)
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
    flags: str | None, precision: str, monkeypatch
) -> None:
    def read_text(path: Path) -> str:
        assert str(path) == "/proc/cpuinfo" and flags
        return f"processor : 0\nflags : {flags}\n"

    for script in stages("04", "05", "06"):
        node = Node(monkeypatch, load_script(script))
        node.see([])
        with monkeypatch.context() as patch:
            patch.setattr(Path, "exists", lambda path: flags is not None)
            patch.setattr(Path, "read_text", read_text)
            args = defaults(node.module, monkeypatch)
        assert args.xla == "off"
        assert getattr(args, "precision", precision) == precision


def test_without_a_gpu_it_is_a_cpu(monkeypatch) -> None:
    for script in SCRIPTS:
        node = Node(monkeypatch, load_script(script))
        node.see([])
        assert node.module.choose_device().startswith("CPU, ")
