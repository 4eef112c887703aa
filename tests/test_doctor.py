"""./workshop doctor: right on this machine, and each fault gets its line and its fix."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import SCRIPTS, stage_environment
from tests.ideal import ideal_python, workshop_env
from tfworkshop import data, machine
from tfworkshop.doctor import finding, separate_process, system, tensorflow_checks
from tfworkshop.doctor.finding import Finding
from tfworkshop.stages import ROOT

DOCTOR = ["-m", "tfworkshop", "doctor"]


def doctor_environment(**extra: str) -> dict[str, str]:
    """As ./workshop starts it, in the environment of these tests; no launcher, no container."""
    drop = ("WORKSHOP_", "APPTAINER_", "SINGULARITY_", "http", "HTTP", "all_proxy")
    kept = {k: v for k, v in stage_environment().items() if not k.startswith(drop)}
    return {**kept, "WORKSHOP_VENV": sys.prefix, "PYTHONPATH": str(ROOT), **extra}


def run_doctor(*options: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options],
        env=doctor_environment(**extra),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def write_package(folder: Path, name: str, code: str) -> str:
    """A package for PYTHONPATH that comes before the real one."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)
    return str(folder)


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch, tmp_path) -> None:
    """No launcher, no container, no GPU, no proxy, whatever this machine has."""
    for name in set(os.environ) - set(doctor_environment()):
        monkeypatch.delenv(name)
    for name, value in doctor_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine, "GPUS", tmp_path / "no-gpus")
    monkeypatch.setattr(machine, "CONTAINER", tmp_path / "no-container")


@pytest.fixture
def gpu_driver(monkeypatch, tmp_path) -> Path:
    """A machine with a GPU and its driver, as /proc shows them."""
    folder = tmp_path / "nvidia"
    (folder / "gpus" / "0000:07:00.0").mkdir(parents=True)
    (folder / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 01:58:15 UTC 2025\n"
    )
    (folder / "params").write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 0\n")
    monkeypatch.setattr(machine, "GPUS", folder / "gpus")
    monkeypatch.setattr(system, "DRIVER_VERSION", folder / "version")
    monkeypatch.setattr(system, "DRIVER_PARAMETERS", folder / "params")
    return folder


# --- this machine ---


def test_nothing_fails_where_the_tests_run(mnist: Path) -> None:
    doctor = run_doctor(*DOCTOR, "--json")
    findings = {each["check"]: Finding(**each) for each in json.loads(doctor.stdout)}
    assert [each for each in findings.values() if each.status == "fail"] == []
    assert doctor.returncode == 0
    wanted = "container environment python packages mnist folders network tensorflow gpu xla"
    wanted += " precision profiler plugin horovod"
    assert set(wanted.split()) <= set(findings)
    assert ("amx" in findings) == system.advertises_amx()
    for each in findings.values():
        assert bool(each.fix) == (each.status != "ok")
        for line in finding.as_text(each).splitlines():
            assert len(line) <= 100 or len(line.split()) <= 4, line  # a path is never broken


def test_without_any_package_it_still_runs_and_creates_nothing(tmp_path, mnist) -> None:
    """-S: Python alone, without site-packages."""
    doctor = run_doctor("-S", *DOCTOR, WORKSHOP_VENV=str(tmp_path / "none"))
    assert doctor.returncode == 1 and doctor.stderr == ""
    lines = [line.split() for line in doctor.stdout.splitlines()]
    assert [line[1] for line in lines if line[:1] == ["fail"]] == ["environment"]
    assert ["->", "./workshop", "setup"] in [line[:3] for line in lines]
    assert lines[-1][:5] == ["1", "of", "6", "checks", "failed:"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("lock", "tensorflow", "status"),
    [
        ("requirements-2.17.txt", "2.17.0+nv25.2", "ok"),
        ("requirements.txt", "2.21.1", "ok"),
        ("requirements.txt", "2.17.1", "warn"),  # with the Keras of 2.21
        ("requirements.txt", "2.16.2", "warn"),
        ("requirements.txt", None, "fail"),
    ],
)
def test_packages_may_differ_in_the_last_number(monkeypatch, lock, tensorflow, status) -> None:
    pins = machine.pinned_versions(lock)
    versions = {name: min(pins[name]) for name in system.PINNED_RELEASE}
    versions |= {"tensorflow": tensorflow, **dict.fromkeys(system.ANY_RELEASE, "1.0")}
    monkeypatch.setattr(system, "installed", versions.get)
    assert system.check_packages().status == status


def test_the_fix_depends_on_where_python_is(monkeypatch) -> None:
    assert system.repair() == f"rm -r {sys.prefix} && ./workshop setup"
    monkeypatch.setattr(system, "installed_requirements", list)
    assert "pip install -r" in system.repair()
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/workshop.sif")
    assert "container/README.md" in system.repair()


# --- TensorFlow itself: it may crash or hang ---


@pytest.mark.parametrize(
    ("code", "reason", "fix"),
    [
        ("import os; os.kill(os.getpid(), 4)", "killed by SIGILL", "AVX"),
        ("import time; time.sleep(60)", "no answer after 1.5 s", "WORKSHOP_VENV="),
        ("raise ImportError('no runtime_version')", "no runtime_version", "./workshop setup"),
    ],
)
def test_an_import_that_fails_crashes_or_hangs(tmp_path, monkeypatch, code, reason, fix) -> None:
    monkeypatch.setenv("PYTHONPATH", write_package(tmp_path, "tensorflow", code))
    monkeypatch.setattr(separate_process, "TIMEOUT_S", 1.5)
    (tensorflow,) = separate_process.run_checks(["tensorflow", "xla"])
    assert (tensorflow.check, tensorflow.status) == ("tensorflow", "fail")
    assert reason in tensorflow.what and fix in tensorflow.fix


def test_a_check_that_dies_does_not_take_the_next_with_it(tmp_path, monkeypatch) -> None:
    """The next has another ptxas on its PATH."""
    write_package(tmp_path, "xprof", "import os; os.abort()")
    monkeypatch.setenv(
        "PYTHONPATH", write_package(tmp_path, "tensorflow", "raise OSError('ptxas')")
    )
    plugin, xla = separate_process.run_checks(["plugin", "xla"])
    assert plugin.status == "fail" and "SIGABRT" in plugin.what
    assert xla.status == "fail" and "module unload cuda" in xla.fix


# --- the GPU ---


@pytest.mark.parametrize(
    ("variables", "cuda", "libcuda", "log", "what", "fix"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, True, True, "", "''", "unset CUDA_VISIBLE_DEVICES"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, True, True, "", "'-1'", "unset CUDA_VISIBLE_DEVICES"),
        ({}, False, True, "", "built for the CPU", "unset WORKSHOP_TENSORFLOW; "),
        ({"APPTAINER_CONTAINER": "x.sif"}, True, False, "", "libcuda", "apptainer exec --nv"),
        ({}, True, True, "I a\nW Could not dlopen libcudnn.so.8", "libcudnn", "nvidia-smi must"),
    ],
)
def test_why_no_gpu_is_seen(gpu_driver, monkeypatch, variables, cuda, libcuda, log, what, fix):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = tensorflow_checks.explain_no_gpu(cuda, libcuda, log)
    assert result.status == "fail" and what in result.what and result.fix.startswith(fix)


def test_a_machine_without_a_gpu(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hides nothing
    assert tensorflow_checks.explain_no_gpu(False, False, "").status == "ok"


@pytest.mark.parametrize(
    ("capability", "units"),
    [((8, 0), "bfloat16 and TF32"), ((7, 0), "none for bfloat16"), ((6, 1), "no tensor cores")],
)
def test_precision_of_a_gpu(capability, units) -> None:
    assert units in tensorflow_checks.judge_capability(capability).what


@pytest.mark.parametrize(("allowed", "status"), [(None, "warn"), ("AVX512_CORE_FP16", "ok")])
def test_amx_that_traps(tmp_path, monkeypatch, allowed, status) -> None:
    code = "import os; os.kill(os.getpid(), 4)"
    monkeypatch.setenv("PYTHONPATH", write_package(tmp_path, "tensorflow", code))
    if allowed:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", allowed)
    (amx,) = separate_process.run_checks(["amx"])
    assert amx.status == status and "SIGILL" in amx.what


def test_constants_are_those_of_the_stages() -> None:
    for folder, file in SCRIPTS:
        text = (ROOT / folder / file).read_text()
        for name in tensorflow_checks.LAUNCHERS:
            assert f'"{name}"' in text, folder
        assert ("ONEDNN_MAX_CPU_ISA" in text) == (separate_process.SAFE_ISA in text)
    assert system.OUTSIDE in data.MIRROR_URL


def test_profiles_without_the_gpu(gpu_driver) -> None:
    for reason in ("CUPTI_ERROR_UNKNOWN", "libcupti.so.12"):
        refused = tensorflow_checks.explain_no_gpu_events(f"E x.cc: {reason} here")
        assert refused.status == "warn" and reason in refused.what
    (gpu_driver / "params").write_text("RmProfilingAdminOnly: 1\nDmaRemapPeerMmio: 1\n")
    restricted = tensorflow_checks.explain_no_gpu_events("")
    assert restricted.status == "warn" and "SIGSEGV" in restricted.what
    crashed = separate_process.explain_end("profiler", "killed by SIGSEGV")
    assert crashed.status == "fail" and "CUPTI" in crashed.what
    for each in (restricted, crashed):
        assert "options nvidia NVreg_RestrictProfilingToAdminUsers=0" in each.fix


@pytest.mark.parametrize(
    ("release", "capability", "status"),
    [("13.0", (7, 0), "warn"), ("13.0", (7, 5), "ok"), ("12.5", (6, 0), "ok")],
)
def test_a_ptxas_that_is_too_new(release: str, capability: tuple[int, int], status: str) -> None:
    version = f"Cuda compilation tools, release {release}, V{release}.88"
    finding = tensorflow_checks.judge_ptxas("/cuda/bin/ptxas", version, capability, "compiles")
    assert (finding.status, "module unload" in finding.fix) == (status, status == "warn")


@pytest.mark.slow
def test_the_ideal_gpu_with_a_driver_that_refuses_to_profile() -> None:
    ideal_python()
    command = [ROOT / "workshop", "doctor", "--ideal-gpu", "--json"]
    environment = {**workshop_env(), "IDEAL_GPU_CUPTI_ERROR": "35"}
    doctor = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    findings = {item["check"]: item for item in json.loads(doctor.stdout)}
    assert "ideal GPU, which is not a GPU" in findings["gpu"]["what"]
    assert findings["gpu"]["status"] == findings["xla"]["status"] == "ok"
    # TensorFlow 2.17 crashes, 2.21 goes on without the GPU; the administrator can help both.
    assert findings["profiler"]["status"] in ("warn", "fail")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in findings["profiler"]["fix"]


def test_an_ideal_gpu_that_is_not_set_up(tmp_path: Path) -> None:
    environment = {**workshop_env(), "WORKSHOP_VENV": str(tmp_path / "none")}
    command = [ROOT / "workshop", "doctor", "--ideal-gpu"]
    doctor = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (doctor.returncode, len(doctor.stderr.splitlines())) == (1, 1)


# --- Horovod ---


@pytest.mark.parametrize(
    ("launched", "version", "built", "size", "gpus", "status", "fix"),
    [
        (1, None, [], 0, 1, "ok", ""),
        (1, None, [], 0, 2, "warn", "./workshop setup --horovod"),
        (2, None, [], 0, 1, "fail", "./workshop setup --horovod"),
        (1, "0.28.1", ["Gloo"], 1, 1, "ok", ""),
        (4, "0.28.1", ["Gloo"], 1, 1, "fail", "horovodrun -np 4 python train_MNIST.py (this"),
        (4, "0.28.1", ["MPI"], 1, 1, "fail", "horovodrun -np 4 python train_MNIST.py"),
        (4, "0.28.1", ["MPI"], 4, 4, "warn", "./workshop setup --horovod where nvcc"),
        (4, "0.28.1", ["MPI", "NCCL"], 4, 4, "ok", ""),
    ],
)
def test_horovod(monkeypatch, launched, version, built, size, gpus, status, fix) -> None:
    monkeypatch.setenv("PMI_SIZE", str(launched))
    result = tensorflow_checks.judge_horovod(version, built, size, gpus)
    assert result.status == status and result.fix.startswith(fix)


def test_two_ranks_that_horovod_has_joined() -> None:
    if not system.installed("horovod"):
        pytest.skip("Horovod is not installed: ./workshop setup --horovod")
    horovodrun = str(Path(sys.executable).parent / "horovodrun")
    code = "from tfworkshop.doctor import tensorflow_checks as c; print(c.check_horovod().what)"
    ran = run_doctor(horovodrun, "--gloo", "-np", "2", sys.executable, "-c", code)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("2 of 2 rank(s) seen") == 2


# --- data, folders, network ---


def test_data_that_is_missing_damaged_or_synthetic(tmp_path, monkeypatch, mnist) -> None:
    path = tmp_path / "mnist.npz"
    monkeypatch.setenv("MNIST_NPZ", str(path))
    missing = system.check_mnist()
    assert missing.status == "fail"
    assert missing.fix.startswith(f"./workshop data --output {path}")
    whole = mnist.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    path.write_bytes(damaged)
    assert system.check_mnist().status == "fail"
    np.savez(path, **data.draw_synthetic())
    assert system.check_mnist().status == "warn"
    monkeypatch.setenv("MNIST_NPZ", str(mnist))
    assert system.check_mnist().status == "ok"


def test_folders_that_cannot_be_written(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", Path("/proc/results")):
        monkeypatch.setenv("WORKSHOP_RESULTS", str(place))
        folders = system.check_folders()
        assert folders.status == "fail" and "WORKSHOP_RESULTS=" in folders.fix, place
    monkeypatch.setenv("WORKSHOP_RESULTS", str(tmp_path / "new" / "folder"))
    assert system.check_folders().status == "ok" and not (tmp_path / "new").exists()


@pytest.mark.parametrize(("free", "status"), [(5e8, "warn"), (5e9, "ok")])
def test_room_on_the_disk(monkeypatch, free, status) -> None:
    usage = shutil._ntuple_diskusage(10**12, 0, int(free))
    monkeypatch.setattr(system.shutil, "disk_usage", lambda path: usage)
    assert system.check_folders().status == status


def test_a_proxy_that_answers_or_not(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("https_proxy", proxy)
        assert system.check_network(needed=True).status == "ok"
    silent = system.check_network(needed=True)
    assert silent.status == "warn" and proxy in silent.what
    assert system.check_network(needed=False).status == "ok"
