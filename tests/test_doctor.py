"""./workshop doctor: right on this machine, and each fault gets its line and its fix."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import SCRIPTS, stage_environment
from tfworkshop import data, machine
from tfworkshop.doctor import (
    command,
    environment,
    finding,
    separate_process,
    system,
    tensorflow_checks,
)
from tfworkshop.doctor.finding import Finding
from tfworkshop.stages import ROOT

DOCTOR = ["-m", "tfworkshop", "doctor"]


def doctor_environment(**extra: str) -> dict[str, str]:
    """As ./workshop starts it, in the environment of these tests; no launcher, no container."""
    drop = ("WORKSHOP_", "APPTAINER_", "SINGULARITY_", "http", "HTTP", "all_proxy", "CXX")
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


def by_check(output: str) -> dict[str, dict]:
    return {each["check"]: each for each in json.loads(output)}


def write_package(folder: Path, name: str, code: str = "", version: str = "") -> str:
    """A package for PYTHONPATH that comes before the real one; with a version, pip's record too."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    if version:
        record = folder / f"{name}-{version}.dist-info" / "METADATA"
        record.parent.mkdir()
        record.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return str(folder)


def write_program(path: Path, output: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)


def run_checks(*checks: str) -> dict[str, Finding]:
    with separate_process.start(list(checks)) as process:
        findings = separate_process.collect(list(checks), process)
    return {each.check: each for each in findings}


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


@pytest.fixture(scope="module")
def visit(mnist: Path) -> subprocess.CompletedProcess[str]:
    """The doctor on this machine; once, for TensorFlow takes seconds to load."""
    return run_doctor(*DOCTOR, "--json")


def test_nothing_fails_where_the_tests_run(visit) -> None:
    findings = by_check(visit.stdout)
    assert [each for each in findings.values() if each["status"] == "fail"] == []
    assert visit.returncode == 0
    wanted = "container environment python packages mnist folders network tensorflow gpu xla"
    wanted += " precision profiler plugin horovod"
    assert set(wanted.split()) <= set(findings)
    assert ("amx" in findings) == ("amx_bf16" in Path("/proc/cpuinfo").read_text())
    for each in findings.values():
        assert set(each) == {"check", "status", "what", "fix"}
        assert bool(each["fix"]) == (each["status"] != "ok")
        for line in finding.as_text(Finding(**each)).splitlines():
            assert len(line) <= 100 or len(line.split()) <= 4, line  # a path is never broken


def test_precision_is_measured_on_a_cpu(visit) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a GPU")
    what = by_check(visit.stdout)["precision"]["what"]
    float32, bfloat16 = (float(word) for word in what.split() if word.replace(".", "").isdigit())
    assert ("bfloat16 pays" in what) == (bfloat16 < 0.9 * float32)


def test_without_any_package_it_still_runs_and_creates_nothing(tmp_path, mnist) -> None:
    """-S: Python alone, without site-packages."""
    venv = tmp_path / "none"
    ran = run_doctor("-S", *DOCTOR, "--json", WORKSHOP_VENV=str(venv))
    findings = by_check(ran.stdout)
    assert ran.returncode == 1 and ran.stderr == ""
    assert findings["environment"]["fix"].startswith("./workshop setup")
    assert findings["mnist"]["status"] == "ok" and "tensorflow" not in findings
    assert list(tmp_path.iterdir()) == []


def test_colour_marks_only_the_status() -> None:
    failed = finding.fail("gpu", "broken", "fix it")
    text = finding.as_text(failed, colour=True)
    assert text.startswith("\x1b[31mfail\x1b[0m ") and text.count("\x1b") == 2
    assert text.replace("\x1b[31m", "").replace("\x1b[0m", "") == finding.as_text(failed)


def test_of_many_ranks_the_others_print_only_failures(tmp_path, mnist) -> None:
    folder = write_package(tmp_path, "tensorflow", "raise ImportError('broken')")
    path = os.pathsep.join([str(ROOT), folder])
    ran = run_doctor(*DOCTOR, PYTHONPATH=path, PMI_RANK="1", PMI_SIZE="2")
    assert ran.returncode == 1
    starts = [line.split()[:2] for line in ran.stdout.splitlines() if not line.startswith(" ")]
    assert starts == [["fail", "tensorflow"]]


# --- packages ---


def test_packages_that_differ_or_are_missing(tmp_path, monkeypatch) -> None:
    assert environment.pins()["numpy"] and "line-profiler" in environment.pins()
    pins = {name: environment.installed(name) for name in ("numpy", "rich", "tensorflow")}
    monkeypatch.setattr(environment, "pins", lambda: pins)
    assert environment.check_packages().status == "ok"
    monkeypatch.syspath_prepend(write_package(tmp_path, "rich", version="1.0"))
    different = environment.check_packages()
    assert (different.status, different.what) == ("warn", f"rich is 1.0, not {pins['rich']}")
    assert different.fix == "./workshop setup"
    pins["not-installed"] = "1.0"
    missing = environment.check_packages()
    assert missing.status == "fail" and missing.what.startswith("not-installed is missing, rich")


@pytest.mark.parametrize(
    ("tensorflow", "status"), [("2.17.0+nv25.2", "ok"), ("2.18.0", "warn"), (None, "fail")]
)
def test_a_container_may_differ_in_the_last_number(monkeypatch, tensorflow, status) -> None:
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/workshop.sif")
    monkeypatch.setenv("WORKSHOP_VENV", "/nowhere")
    versions = {"tensorflow": tensorflow, "rich": "13.9.4"}
    installed = environment.installed
    monkeypatch.setattr(environment, "pins", lambda: {"tensorflow": "2.17.1", "rich": "15.0.0"})
    monkeypatch.setattr(environment, "installed", lambda n: versions.get(n) or installed("no"))
    packages = environment.check_packages()
    assert packages.status == status
    assert status == "ok" or "container/README.md" in packages.fix


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
    started = time.monotonic()
    findings = run_checks("tensorflow", "xla")
    assert time.monotonic() - started < 10
    assert list(findings) == ["tensorflow"] and findings["tensorflow"].status == "fail"
    assert reason in findings["tensorflow"].what and fix in findings["tensorflow"].fix


def test_a_check_that_dies_does_not_take_the_next_with_it(tmp_path, monkeypatch) -> None:
    """The next: a HOROVOD_SIZE that an earlier session has left."""
    folder = write_package(tmp_path, "tensorboard_plugin_profile", "import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", folder)
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    findings = run_checks("plugin", "horovod")
    assert findings["plugin"].status == "fail" and "SIGABRT" in findings["plugin"].what
    assert findings["horovod"].fix == "unset HOROVOD_SIZE"


# --- the GPU ---


@pytest.mark.parametrize(
    ("variables", "cuda", "libcuda", "log", "what", "fix"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, True, True, "", "''", "unset CUDA_VISIBLE_DEVICES"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, True, True, "", "'-1'", "unset CUDA_VISIBLE_DEVICES"),
        ({}, False, True, "", "built for the CPU", "./workshop setup"),
        ({"WORKSHOP_TENSORFLOW": "tensorflow-cpu"}, False, True, "", "CPU", "unset WORKSHOP_TENS"),
        ({"APPTAINER_CONTAINER": "x.sif"}, True, False, "", "libcuda", "apptainer exec --nv"),
        ({}, True, True, "I a\nW Could not dlopen libcudnn.so.8", "libcudnn", "nvidia-smi must"),
    ],
)
def test_why_no_gpu_is_seen(gpu_driver, monkeypatch, variables, cuda, libcuda, log, what, fix):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = tensorflow_checks.explain_no_gpu(cuda, libcuda, log)
    assert result.status == "fail" and what in result.what and result.fix.startswith(fix)


def test_a_machine_without_a_gpu_or_without_its_driver(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hides nothing
    card = tmp_path / "pci" / "0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    monkeypatch.setattr(system, "PCI_DEVICES", tmp_path / "pci")
    for kind, status in (("0x040300", "ok"), ("0x030200", "warn")):  # its sound device, the GPU
        (card / "class").write_text(f"{kind}\n")
        assert tensorflow_checks.explain_no_gpu(False, False, "").status == status


@pytest.mark.parametrize(
    ("capability", "units"),
    [((8, 0), "bfloat16 and TF32"), ((7, 0), "none for bfloat16"), ((6, 1), "no tensor cores")],
)
def test_precision_of_a_gpu(capability, units) -> None:
    assert units in tensorflow_checks.judge_capability(capability).what


def test_a_ptxas_of_another_cuda(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert system.find_foreign_ptxas("12.3") is None
    program = tmp_path / "ptxas"
    write_program(program, "Cuda compilation tools, release 12.8, V12.8.93")
    assert system.find_foreign_ptxas("12.3") is None
    write_program(program, "Cuda compilation tools, release 13.0, V13.0.48")
    assert f"{program} of CUDA 13.0" in str(system.find_foreign_ptxas("12.3"))


# --- AMX ---


@pytest.mark.parametrize(
    ("allowed", "status"), [(None, "warn"), ("AVX512_CORE_AMX", "fail"), ("AVX2", "ok")]
)
def test_amx_that_traps(monkeypatch, allowed, status) -> None:
    if allowed:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", allowed)
    assert separate_process.explain_end("amx", "killed by SIGILL").status == status


def test_amx_is_tried_only_when_the_other_process_has_measured(tmp_path, monkeypatch) -> None:
    code = f"open({str(tmp_path / 'imported')!r}, 'w')\n"
    code += "def cast(*_): import os; os.kill(os.getpid(), 4)\n"
    code += "class random: normal = list\nbfloat16 = None"
    monkeypatch.setenv("PYTHONPATH", write_package(tmp_path, "tensorflow", code))
    with separate_process.start_amx() as process:
        while not (tmp_path / "imported").exists():
            time.sleep(0.02)
        time.sleep(0.2)
        assert process.poll() is None
        (amx,) = separate_process.collect(["amx"], process)
    assert amx.status == "warn" and "SIGILL" in amx.what


def test_constants_are_those_of_the_stages() -> None:
    for folder, file in SCRIPTS:
        text = (ROOT / folder / file).read_text()
        for name in tensorflow_checks.LAUNCHERS:
            assert f'"{name}"' in text, folder
        assert ("ONEDNN_MAX_CPU_ISA" in text) == (separate_process.SAFE_ISA in text)
    assert system.OUTSIDE in data.MIRROR_URL


# --- the profiler ---


def test_profiles_without_the_gpu(gpu_driver) -> None:
    no_cupti = tensorflow_checks.explain_no_gpu_events(False, "")
    assert no_cupti.status == "warn" and "LD_LIBRARY_PATH" in no_cupti.fix
    refused = tensorflow_checks.explain_no_gpu_events(True, "E x.cc: CUPTI_ERROR_UNKNOWN here")
    assert refused.status == "warn" and "CUPTI_ERROR_UNKNOWN" in refused.what
    (gpu_driver / "params").write_text("RmProfilingAdminOnly: 1\nDmaRemapPeerMmio: 1\n")
    restricted = tensorflow_checks.explain_no_gpu_events(True, "")
    assert restricted.status == "warn" and "SIGSEGV" in restricted.what
    crashed = separate_process.explain_end("profiler", "killed by SIGSEGV")
    assert crashed.status == "fail" and "CUPTI" in crashed.what
    for each in (restricted, crashed):
        assert "options nvidia NVreg_RestrictProfilingToAdminUsers=0" in each.fix


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
    for launcher in tensorflow_checks.LAUNCHERS[1:]:
        with monkeypatch.context() as patch:
            patch.setenv(launcher, str(launched))
            result = tensorflow_checks.judge_horovod(version, built, size, gpus)
        assert result.status == status and result.fix.startswith(fix)


def test_two_ranks_that_horovod_has_joined() -> None:
    if not environment.installed("horovod"):
        pytest.skip("Horovod is not installed: ./workshop setup --horovod")
    horovodrun = str(Path(sys.executable).parent / "horovodrun")
    code = "from tfworkshop.doctor import tensorflow_checks as c; print(c.check_horovod().what)"
    ran = run_doctor(horovodrun, "--gloo", "-np", "2", sys.executable, "-c", code)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("2 of 2 rank(s) seen") == 2


# --- data, folders, compiler, network, container ---


def test_data_that_is_missing_damaged_or_synthetic(tmp_path, monkeypatch, mnist) -> None:
    path = tmp_path / "mnist.npz"
    monkeypatch.setenv("MNIST_NPZ", str(path))
    missing = system.check_mnist()
    assert missing.status == "fail"
    assert missing.fix.startswith(f"./workshop data --output {path}")
    whole = mnist.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert system.check_mnist().status == "fail"
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
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "logs").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "results", Path("/proc/results")):
        monkeypatch.setenv("WORKSHOP_RESULTS", str(place))
        folders = system.check_folders()
        assert folders.status == "fail" and "WORKSHOP_RESULTS=" in folders.fix, place
    monkeypatch.setenv("WORKSHOP_RESULTS", str(tmp_path / "new" / "folder"))
    assert system.check_folders().status == "ok" and not (tmp_path / "new").exists()


@pytest.mark.parametrize(("free", "status"), [(5e7, "fail"), (5e8, "warn"), (5e9, "ok")])
def test_room_on_the_disk(monkeypatch, free, status) -> None:
    usage = shutil._ntuple_diskusage(10**12, 0, int(free))
    monkeypatch.setattr(system.shutil, "disk_usage", lambda path: usage)
    assert system.check_folders().status == status


def test_the_compiler(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert system.check_compiler().fix == "sudo apt install build-essential"
    for name in ("g++", "make"):
        write_program(tmp_path / name, "")
    assert system.check_compiler().status == "ok"


def test_a_proxy_that_answers_or_not(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("https_proxy", proxy)
        assert system.check_network(needed=True).status == "ok"
    for wrong in (proxy, "http://host:port"):
        monkeypatch.setenv("https_proxy", wrong)
        network = system.check_network(needed=False)
        assert network.status == "warn" and wrong in network.what and "https_proxy" in network.fix


def test_no_route_matters_only_while_something_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(system, "OUTSIDE", "no-such-host.invalid")
    assert system.check_network(needed=False).status == "ok"
    assert system.check_network(needed=True).status == "warn"


def test_the_container_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(system, "DOCKER", tmp_path / "none")
    assert system.check_container().what.startswith("none")
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/workshop.sif")
    monkeypatch.setenv("APPTAINER_NAME", "workshop.sif")
    assert system.check_container().what.endswith("container workshop.sif")


def test_failures_are_counted() -> None:
    findings = [
        finding.ok("a", "good"),
        finding.warn("b", "slow", "x"),
        finding.fail("c", "no", "y"),
    ]
    assert command.summarize(findings).startswith("1 of 3 checks failed")
    assert command.summarize(findings[:2]) == "2 checks, none failed, 1 worth a look."
