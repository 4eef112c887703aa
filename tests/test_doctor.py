"""./workshop doctor: right on this machine, and each fault gets its line and its fix."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest

from tests.conftest import SCRIPTS, stage_environment
from tests.test_environment import script
from tfworkshop import data, machine
from tfworkshop.doctor import command as doctor
from tfworkshop.doctor import finding, probe, system, training
from tfworkshop.doctor.finding import Finding
from tfworkshop.doctor.probe import Answers
from tfworkshop.stages import ROOT

DOCTOR = [sys.executable, "-m", "tfworkshop", "doctor"]


def environment(**extra: str) -> dict[str, str]:
    """As ./workshop starts it: in the environment that the tests run in."""
    drop = ("WORKSHOP_", "APPTAINER_", "SINGULARITY_")
    kept = {k: v for k, v in stage_environment().items() if not k.startswith(drop)}
    kept |= {"WORKSHOP_VENV": sys.prefix, "WORKSHOP_PYTHON_ENV": "venv"}
    return {**kept, "PYTHONPATH": str(ROOT), **extra}


def run_doctor(faults: Path | None = None, **extra: str) -> tuple[int, dict[str, dict]]:
    """Exit status and findings by name; `faults` holds packages that come before the real ones."""
    if faults:
        extra["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(faults)])
    ran = subprocess.run(
        [*DOCTOR, "--json"], env=environment(**extra), cwd=ROOT, capture_output=True, text=True
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode, by_check(ran.stdout)


def by_check(output: str) -> dict[str, dict]:
    return {each["check"]: each for each in json.loads(output)}


def package(folder: Path, name: str, code: str, version: str = "") -> Path:
    """A broken package for PYTHONPATH; with a version, pip's record of it too."""
    path = folder.joinpath(*name.split("."))
    path.mkdir(parents=True)
    (path / "__init__.py").write_text(code)
    if version:
        distribution = name.split(".")[-1]
        record = folder / f"{distribution}-{version}.dist-info"
        record.mkdir()
        (record / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
    return folder


def use_environment(patch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(environment()):
        patch.delenv(name)
    for name, value in environment().items():
        patch.setenv(name, value)


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch, tmp_path):
    """No launcher, no container, no GPU, no proxy, whatever this machine has."""
    use_environment(monkeypatch)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
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


class Visit(NamedTuple):
    """Once for all tests: TensorFlow takes seconds to load."""

    status: int
    found: dict[str, dict]
    answers: Answers  # of this machine's TensorFlow


@pytest.fixture(scope="module")
def visit(mnist: Path) -> Visit:
    """The doctor on this machine, as it is."""
    heard, output = [], io.StringIO()

    def ask(*given, **more) -> Answers:
        heard.append(probe.ask(*given, **more))
        return heard[-1]

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        use_environment(patch)
        patch.setattr(doctor, "ask", ask)
        status = doctor.run(as_json=True)
    return Visit(status, by_check(output.getvalue()), heard[0])


@pytest.fixture(scope="module")
def real(visit: Visit) -> Answers:
    """What this machine's TensorFlow really answers; tests change copies of it."""
    return visit.answers


@pytest.fixture
def answers(real: Answers) -> Answers:
    return copy.deepcopy(real)


@pytest.fixture
def cuda_answers(answers: Answers) -> Answers:
    """As from a TensorFlow built for CUDA that sees no GPU."""
    answers.results["tensorflow"].update(cuda_build=True, cuda="12.3")
    answers.results["libraries"] = {"cuda": "libcuda.so.1", "cupti": "libcupti.so.12"}
    answers.results["gpus"] = []
    return answers


def a100(answers: Answers, count: int = 1) -> None:
    gpu = {"name": "NVIDIA A100-SXM4-40GB", "capability": [8, 0]}
    answers.results["gpus"] = [gpu] * count


def pretend(patch: pytest.MonkeyPatch, module: ModuleType, versions: dict) -> None:
    """These versions are installed, or None, and the others as they are."""
    real = system.installed
    patch.setattr(
        module, "installed", lambda name: versions[name] if name in versions else real(name)
    )


# --- this machine ---


def test_nothing_fails_on_a_machine_where_the_tests_run(visit) -> None:
    found = visit.found
    assert [each for each in found.values() if each["status"] == "fail"] == []
    assert visit.status == 0
    wanted = "container environment packages mnist folders network tensorflow gpu xla precision "
    wanted += "profiler plugin setuptools horovod"
    assert set(wanted.split()) <= set(found)
    assert all(set(each) == {"check", "status", "what", "fix"} for each in found.values())
    assert all(bool(each["fix"]) == (each["status"] != "ok") for each in found.values())


def test_what_it_says_here_is_so(visit) -> None:
    found = visit.found
    assert machine.TENSORFLOW_VERSION in found["tensorflow"]["what"]
    assert str(shutil.disk_usage(ROOT).free // 10**10) in found["folders"]["what"]
    if not Path("/proc/driver/nvidia").exists():
        assert found["gpu"]["what"] == "no NVIDIA GPU here: the stages run on the CPU"
        assert not {"cupti", "counters"} & set(found)
        assert ("amx" in found) == ("amx_bf16" in Path("/proc/cpuinfo").read_text())


def test_every_line_fits_100_columns(visit) -> None:
    for each in visit.found.values():
        for line in finding.as_text(Finding(**each)).splitlines():
            assert len(line) <= 100, line


def test_colour_marks_the_status_and_nothing_else() -> None:
    shown = finding.as_text(finding.fail("gpu", "broken", "fix it"), colour=True)
    assert shown.startswith("\x1b[31mfail\x1b[0m ") and shown.count("\x1b") == 2
    assert shown.replace("\x1b[31m", "").replace("\x1b[0m", "") == finding.as_text(
        finding.fail("gpu", "broken", "fix it")
    )


# --- the environment ---


def test_without_an_environment_it_still_runs_and_installs_nothing(tmp_path, mnist) -> None:
    ran = subprocess.run(
        [sys.executable, "-I", str(ROOT / "workshop"), "doctor"],
        env=environment(WORKSHOP_VENV=str(tmp_path / "none"), PATH="/bin:/usr/bin"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1 and ran.stderr == ""
    lines = ran.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("fail  environment"))
    fix = next(line for line in lines[at:] if "->" in line)
    assert fix.strip().startswith("-> ./workshop setup")
    assert "\x1b" not in ran.stdout and max(map(len, lines)) <= 100
    assert list(tmp_path.iterdir()) == []


def test_an_environment_whose_python_does_not_run(tmp_path) -> None:
    script(tmp_path / "bin" / "python", "exit 127\n")
    ran = subprocess.run(
        [sys.executable, str(ROOT / "workshop"), "doctor", "--json"],
        env=environment(WORKSHOP_VENV=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1 and by_check(ran.stdout)["environment"]["status"] == "fail"


def test_a_python_that_does_not_fit(tmp_path, monkeypatch) -> None:
    assert system.check_python().status == "ok"
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WORKSHOP_CACHE", str(tmp_path))
    none = system.check_python()
    assert none.status == "warn" and "this is 3.14" in none.what and "3.9 to 3.12" in none.what
    assert none.fix.startswith("./workshop setup")
    other = script(tmp_path / "python3.11", 'echo "3 11 $0"\n')
    assert system.check_python() == finding.ok(
        "python", f"this is 3.14; TensorFlow will use {other}"
    )
    monkeypatch.setenv("WORKSHOP_PYTHON", "/nowhere/python3.12")
    wrong = system.check_python()
    assert wrong.status == "fail" and wrong.fix == "unset WORKSHOP_PYTHON"


@pytest.mark.parametrize(
    ("told", "status", "what"),
    [
        ("g++ (Debian 14.2.0-19) 14.2.0", "ok", "g++ 14"),
        ("g++ (Ubuntu 9.4.0-1ubuntu1~20.04.2) 9.4.0", "warn", "g++ 9: Horovod's build is prepared"),
        ("g++ (GCC) 16.1.0 20270401", "warn", "g++ 16: Horovod's build is prepared"),
        ("Apple clang version 17.0.0", "ok", "not g++"),
        (None, "warn", "g++ and make are missing"),
    ],
)
def test_a_compiler_that_does_not_fit(tmp_path, monkeypatch, told, status, what) -> None:
    for name in ("g++", "make") if told else ():
        script(tmp_path / name, f"echo '{told}'\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = system.check_compiler()
    assert found.status == status and what in found.what
    assert ("apt install" in found.fix) == (status == "warn")


def test_an_unfinished_or_outdated_environment(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("WORKSHOP_VENV", str(tmp_path))
    stamp = tmp_path / "workshop.json"
    stamp.write_text('{"complete": false}')
    assert system.check_environment().status == "fail"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    wanted = machine.choose_tensorflow(None)
    kept = {"complete": True, "tensorflow": wanted, "python": system.venv.PYTHON}
    stamp.write_text(json.dumps({**kept, "layers": {"run": "an older one"}}))
    outdated = system.check_environment()
    assert outdated.status == "warn" and "another requirements.txt" in outdated.what
    assert outdated.fix == "./workshop setup"


def test_the_pins_are_those_of_requirements_txt() -> None:
    pins = system.pins()
    assert pins["numpy"] == np.__version__
    assert "line-profiler" in pins
    assert ("importlib-metadata" in pins) == (sys.version_info < (3, 10))
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert len(pins) <= sum("==" in line for line in lines) <= len(pins) + 5


def test_a_package_that_is_not_the_pinned_one(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(package(tmp_path, "rich", "", version="1.0"))
    found = system.check_packages()
    assert (found.status, found.what) == ("warn", f"rich is 1.0, not {system.pins()['rich']}")
    assert found.fix.endswith(f"-m pip install --no-deps rich=={system.pins()['rich']}")


def test_a_package_that_is_missing(monkeypatch) -> None:
    pretend(monkeypatch, system, {"gast": None})
    found = system.check_packages()
    assert (found.status, found.what) == ("fail", "gast is missing")
    assert f"pip install --no-deps gast=={system.pins()['gast']}" in found.fix


def test_packages_of_the_home_folder_come_before_a_containers(tmp_path, monkeypatch) -> None:
    home = package(tmp_path, "protobuf", "", version="7.0.0")
    monkeypatch.syspath_prepend(home)
    monkeypatch.setattr(system.site, "getusersitepackages", lambda: str(home))
    monkeypatch.setattr(system.site, "ENABLE_USER_SITE", True)
    monkeypatch.setenv("WORKSHOP_PYTHON_ENV", "system")
    found = system.check_packages()
    assert "protobuf is 7.0.0" in found.what and found.status == "warn"
    assert found.fix.startswith("export PYTHONNOUSERSITE=1")


def test_a_container_may_differ_in_the_last_digit(monkeypatch) -> None:
    monkeypatch.setenv("WORKSHOP_PYTHON_ENV", "system")
    ngc = {"tensorflow": "2.17.0+nv25.2", "protobuf": "4.25.3", "rich": "13.9.4"}
    pretend(monkeypatch, system, ngc)
    assert system.check_packages().status == "ok"
    ngc["tensorflow"] = "2.18.0"
    assert system.check_packages().status == "warn"


# --- TensorFlow itself ---


def test_an_import_that_crashes_is_a_line(tmp_path, mnist) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)"
    status, found = run_doctor(package(tmp_path, "tensorflow", code))
    assert status == 1
    assert found["tensorflow"]["status"] == "fail" and "SIGILL" in found["tensorflow"]["what"]
    assert "AVX" in found["tensorflow"]["fix"]
    assert "xla" not in found and found["mnist"]["status"] == "ok"


def test_an_import_that_hangs_is_a_line(tmp_path, monkeypatch) -> None:
    folder = package(tmp_path, "tensorflow", "import time\ntime.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(probe, "LIMIT_S", 1.5)
    started = time.monotonic()
    found = training.check_tensorflow(probe.ask(["tensorflow", "xla"]))
    assert time.monotonic() - started < 10
    assert found.status == "fail" and "no answer after 1.5 s" in found.what
    assert "WORKSHOP_VENV=" in found.fix


def test_a_protobuf_that_tensorflow_cannot_load(tmp_path, mnist) -> None:
    code = "raise ImportError('cannot import name runtime_version')"
    faults = package(tmp_path, "google.protobuf", code, version="7.0.0")
    status, found = run_doctor(faults)
    assert status == 1
    pin = f"pip install --no-deps protobuf=={system.pins()['protobuf']}"
    assert "protobuf is 7.0.0" in found["packages"]["what"] and pin in found["packages"]["fix"]
    assert found["tensorflow"]["status"] == "fail" and pin in found["tensorflow"]["fix"]


def test_a_step_that_dies_does_not_take_the_next_with_it(tmp_path, monkeypatch) -> None:
    folder = package(tmp_path, "tensorboard_plugin_profile", "import os\nos.abort()")
    package(folder, "pkg_resources", "raise ModuleNotFoundError('gone')")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    answers = probe.ask(["plugin", "pkg_resources", "libraries"])
    assert answers.errors["plugin"] == "killed by SIGABRT"
    assert answers.errors["pkg_resources"] == "ModuleNotFoundError: gone"
    assert "libraries" in answers.results


def test_xla_that_does_not_compile(answers) -> None:
    del answers.results["xla"]
    answers.errors["xla"] = "killed by SIGSEGV"
    found = training.check_xla(answers)
    assert found.status == "fail" and "SIGSEGV" in found.what and "./workshop setup" in found.fix


# --- the GPU ---


def test_hidden_gpus(gpu_driver, cuda_answers, monkeypatch) -> None:
    for value in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        found = training.check_gpus(cuda_answers)
        assert (found.status, found.fix) == ("fail", "unset CUDA_VISIBLE_DEVICES")
        assert f"CUDA_VISIBLE_DEVICES='{value}'" in found.what


def test_hidden_gpus_do_not_matter_where_there_are_none(answers, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert training.check_gpus(answers).status == "ok"


def test_tensorflow_cpu_on_a_gpu_machine(gpu_driver, answers, monkeypatch) -> None:
    answers.results["tensorflow"]["cuda_build"] = False
    found = training.check_gpus(answers)
    assert (found.status, found.fix) == ("fail", "./workshop setup")
    assert "built for the CPU" in found.what
    monkeypatch.setenv("WORKSHOP_TENSORFLOW", "tensorflow-cpu")
    assert training.check_gpus(answers).fix.startswith("unset WORKSHOP_TENSORFLOW")


def test_nv_forgotten(gpu_driver, cuda_answers, monkeypatch) -> None:
    cuda_answers.results["libraries"]["cuda"] = None
    outside = training.check_gpus(cuda_answers)
    assert outside.status == "fail" and "LD_LIBRARY_PATH" in outside.fix
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/workshop.sif")
    inside = training.check_gpus(cuda_answers)
    assert inside.status == "fail" and "exec --nv" in inside.fix


def test_an_old_driver(gpu_driver, cuda_answers) -> None:
    text = (gpu_driver / "version").read_text()
    (gpu_driver / "version").write_text(text.replace("570.124.06", "470.82.01"))
    found = training.check_gpus(cuda_answers)
    assert found.status == "fail" and "470.82.01" in found.what and "525" in found.fix


def test_cuda_libraries_that_are_missing(gpu_driver, cuda_answers) -> None:
    cuda_answers.said = (
        "W tsl/platform/default/dso_loader.cc:59] Could not load dynamic library 'libcudnn.so.8'; "
        "dlerror: ...\nW gpu_device.cc:2343] Cannot dlopen some GPU libraries. Please make sure\n"
    )
    found = training.check_gpus(cuda_answers)
    assert found.status == "fail" and "'libcudnn.so.8'" in found.what
    assert "nvidia-smi" in found.fix and "./workshop setup" in found.fix


def test_a_gpu_without_its_driver(answers, monkeypatch, tmp_path) -> None:
    card = tmp_path / "pci" / "0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    monkeypatch.setattr(system, "PCI_DEVICES", tmp_path / "pci")
    found = training.check_gpus(answers)
    assert found.status == "warn" and "install the NVIDIA driver" in found.fix
    (card / "class").write_text("0x040300\n")  # its sound device
    assert training.check_gpus(answers).status == "ok"


def test_gpus_that_are_seen(gpu_driver, cuda_answers) -> None:
    a100(cuda_answers, 4)
    found = training.check_gpus(cuda_answers)
    assert (found.status, found.what) == ("ok", "4 x NVIDIA A100-SXM4-40GB, driver 570.124.06")


# --- precision ---


@pytest.mark.parametrize(
    ("capability", "told"),
    [((8, 0), "bfloat16 and TF32"), ((7, 0), "none for bfloat16"), ((6, 1), "no tensor cores")],
)
def test_precision_of_a_gpu(answers, capability, told) -> None:
    answers.results["gpus"] = [{"name": "GPU", "capability": list(capability)}]
    found = training.check_precision(answers)
    assert found.status == "ok" and told in found.what


def test_precision_of_a_cpu_is_measured(real, answers) -> None:
    if real.results["gpus"]:
        pytest.skip("this machine has a GPU")
    times = real.results["precision"]
    assert 0.1 < times["float32"] < 5000 and 0.1 < times["bfloat16"] < 60000
    answers.results["precision"] = {"float32": 20.0, "bfloat16": 9.0}
    assert "bfloat16 pays" in training.check_precision(answers).what
    answers.results["precision"] = {"float32": 20.0, "bfloat16": 30.0}
    assert "use float32" in training.check_precision(answers).what


def test_amx_that_traps(monkeypatch) -> None:
    trapped = Answers(errors={"amx": "killed by SIGILL"})
    found = training.check_amx(trapped)
    assert found.status == "warn" and "export ONEDNN_MAX_CPU_ISA=" in found.fix
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX")
    assert training.check_amx(trapped).status == "fail"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    assert training.check_amx(trapped).status == "ok"
    assert training.check_amx(Answers(results={"amx": {}})).status == "ok"


def test_amx_is_tried_in_its_turn(tmp_path, monkeypatch) -> None:
    """TensorFlow is loaded ahead; the product waits, because another process measures."""
    code = "import os, signal\nos.write(2, b'loaded')\n"
    code += "def cast(*_): os.kill(os.getpid(), signal.SIGILL)\n"
    code += "class random: normal = list\nbfloat16 = None"
    monkeypatch.setenv("PYTHONPATH", str(package(tmp_path, "tensorflow", code)))
    with probe.started(doctor.AMX, **doctor.ALLOWED) as (process, said):
        while not os.fstat(said.fileno()).st_size:
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.2)
        assert process.poll() is None
        answers = probe.ask(doctor.AMX, (process, said))
    assert answers.errors == {"amx": "killed by SIGILL"} and not answers.results
    assert training.check_amx(answers).status == "warn"


def test_the_safe_instructions_are_those_of_the_stages() -> None:
    for number in ("05", "06"):
        text = next(ROOT.glob(f"{number}_*/train_MNIST.py")).read_text()
        assert f'("ONEDNN_MAX_CPU_ISA", "{probe.SAFE_ISA}")' in text


# --- the profiler ---


def test_the_profiler_is_tried_for_real(real) -> None:
    assert real.results["profiler"]["bytes"] > 1000 and real.results["plugin"]["bytes"] > 1000


def test_a_broken_plugin(answers, monkeypatch) -> None:
    del answers.results["plugin"]
    answers.errors["plugin"] = "ImportError: cannot import name '_pywrap_profiler_plugin'"
    found = training.check_plugin(answers)
    assert found.status == "fail" and "_pywrap_profiler_plugin" in found.what
    assert "--force-reinstall" in found.fix and "tensorboard-plugin-profile==" in found.fix
    newer = {"tensorboard-plugin-profile": "2.19.5", "protobuf": "7.0.0"}
    pretend(monkeypatch, training, newer)
    found = training.check_plugin(answers)
    for name in newer:
        assert f"{name}=={system.pins()[name]}" in found.fix
    assert "tensorboard==" not in found.fix


def test_a_plugin_of_another_tensorflow(answers, monkeypatch) -> None:
    pretend(monkeypatch, training, {"tensorboard-plugin-profile": "2.19.5"})
    found = training.check_plugin(answers)
    assert found.status == "warn" and "2.19.5 is not the one" in found.what
    assert "tensorboard-plugin-profile==" in found.fix


def test_setuptools_without_pkg_resources(tmp_path, monkeypatch) -> None:
    folder = package(tmp_path, "pkg_resources", "raise ModuleNotFoundError('pkg_resources')")
    package(folder, "setuptools", "", version="82.0.0")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(folder)
    found = training.check_pkg_resources(probe.ask(["pkg_resources"]))
    assert found.status == "fail" and "82.0.0" in found.what
    assert found.fix.endswith(f"setuptools=={system.pins()['setuptools']}")


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {each.check: each for each in found}


def test_a_driver_that_keeps_the_counters_to_the_administrator(gpu_driver, cuda_answers) -> None:
    assert by_name(training.check_profiler(cuda_answers))["counters"].status == "ok"
    (gpu_driver / "params").write_text("RmProfilingAdminOnly: 1\nDmaRemapPeerMmio: 1\n")
    found = by_name(training.check_profiler(cuda_answers))["counters"]
    assert found.status == "warn" and "RmProfilingAdminOnly: 1" in found.what
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found.fix
    a100(cuda_answers)
    cuda_answers.results["profiler"]["gpu"] = True  # recorded all the same: then that is so
    assert by_name(training.check_profiler(cuda_answers))["counters"].status == "ok"


def test_no_cupti_on_a_gpu_machine(gpu_driver, cuda_answers) -> None:
    assert by_name(training.check_profiler(cuda_answers))["cupti"].status == "ok"
    cuda_answers.results["libraries"]["cupti"] = None
    found = by_name(training.check_profiler(cuda_answers))["cupti"]
    assert found.status == "warn" and "LD_LIBRARY_PATH" in found.fix


def test_a_profile_without_gpu_events(gpu_driver, cuda_answers) -> None:
    a100(cuda_answers)
    cuda_answers.results["profiler"]["gpu"] = False
    cuda_answers.said = (
        "E cupti_tracer.cc:1] function cupti_... CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    )
    found = training.check_recording(cuda_answers)
    assert found.status == "warn" and "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" in found.what


# --- Horovod ---


@pytest.fixture
def with_horovod(answers: Answers) -> Answers:
    if system.installed("horovod") is None:
        pytest.skip("Horovod is not installed: ./workshop setup --horovod")
    return answers


@pytest.mark.parametrize("launcher", training.LAUNCHERS[1:])
def test_more_ranks_than_horovod_sees(with_horovod, monkeypatch, launcher) -> None:
    assert training.check_horovod(with_horovod).status == "ok"
    monkeypatch.setenv(launcher, "4")
    found = training.check_horovod(with_horovod)
    assert found.status == "fail" and f"sees 1 rank(s), but {launcher}=4" in found.what
    assert found.fix.startswith("horovodrun -np 4 ")


def test_two_ranks_that_horovod_has_joined(with_horovod) -> None:
    code = (
        "from tfworkshop.doctor import probe, training; "
        "print(training.check_horovod(probe.ask(['horovod'])).what)"
    )
    horovodrun = [str(Path(sys.executable).parent / "horovodrun"), "--gloo", "-np", "2"]
    ran = subprocess.run(
        [*horovodrun, sys.executable, "-c", code],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("2 of 2 rank(s) seen") == 2


def test_of_many_ranks_the_others_tell_only_failures(tmp_path, mnist) -> None:
    faults = package(tmp_path, "tensorflow", "raise ImportError('broken')")
    path = os.pathsep.join([str(ROOT), str(faults)])
    env = environment(PYTHONPATH=path, PMI_RANK="1", PMI_SIZE="2")
    ran = subprocess.run(DOCTOR, env=env, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1
    starts = [line.split()[:2] for line in ran.stdout.splitlines() if not line.startswith(" ")]
    assert starts == [["fail", "tensorflow"]]


def test_launchers_are_those_of_the_stages() -> None:
    names = ", ".join(f'"{name}"' for name in training.LAUNCHERS)
    for folder, file in SCRIPTS:
        assert f"({names})" in (ROOT / folder / file).read_text(), folder


def test_no_horovod(answers, monkeypatch) -> None:
    answers.results.pop("horovod", None)
    answers.errors["horovod"] = "ModuleNotFoundError: No module named 'horovod'"
    monkeypatch.setattr(training, "installed", lambda name: None)
    assert training.check_horovod(answers).status == "ok"
    a100(answers, 2)
    assert training.check_horovod(answers).status == "warn"
    monkeypatch.setenv("PMI_SIZE", "2")
    found = training.check_horovod(answers)
    assert (found.status, found.fix) == ("fail", "./workshop setup --horovod")


def test_a_horovod_that_does_not_load(answers, monkeypatch) -> None:
    answers.results.pop("horovod", None)
    answers.errors["horovod"] = "NotFoundError: mpi_lib.so: undefined symbol"
    monkeypatch.setattr(training, "installed", lambda name: "0.28.1")
    found = training.check_horovod(answers)
    assert found.status == "fail" and "undefined symbol" in found.what
    assert found.fix.endswith("./workshop setup --horovod")


# --- data, folders, network, container ---


def test_data_that_is_missing_corrupt_or_drawn(tmp_path, monkeypatch, mnist) -> None:
    path = tmp_path / "mnist.npz"
    monkeypatch.setenv("MNIST_NPZ", str(path))
    missing = system.check_mnist()
    assert missing.status == "fail" and "it is not there" in missing.what
    assert missing.fix.startswith(f"./workshop data --output {path}")
    whole = mnist.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    cut = system.check_mnist()
    assert cut.status == "fail" and "complete npz" in cut.what and "./workshop data" in cut.fix
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    path.write_bytes(damaged)
    assert system.check_mnist().status == "fail"
    np.savez(path, **data.draw_synthetic())
    assert system.check_mnist().status == "warn"


def test_folders_that_cannot_be_written(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/results")):
        monkeypatch.setenv("WORKSHOP_RESULTS", str(place))
        found = system.check_folders()
        assert found.status == "fail" and "WORKSHOP_RESULTS=" in found.fix, place
    monkeypatch.setenv("WORKSHOP_RESULTS", str(tmp_path / "new"))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "logs").write_text("in the way")
    assert system.check_folders().status == "fail"


def test_a_folder_is_not_made_by_looking(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WORKSHOP_RESULTS", str(tmp_path / "a" / "b"))
    assert system.check_folders().status == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free", "status"), [(5e7, "fail"), (5e8, "warn"), (5e9, "ok")])
def test_room_on_the_disk(monkeypatch, free, status) -> None:
    usage = shutil._ntuple_diskusage(10**12, 0, int(free))
    monkeypatch.setattr(system.shutil, "disk_usage", lambda path: usage)
    found = system.check_folders()
    assert found.status == status and (status == "ok" or "WORKSHOP_RESULTS=" in found.fix)


def test_a_proxy_that_answers_or_not(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        assert system.check_network(needed=True).status == "ok"
    found = system.check_network(needed=True)
    assert found.status == "warn" and f"127.0.0.1:{port}" in found.what
    assert "https_proxy" in found.fix
    monkeypatch.setenv("https_proxy", "http://host:port")
    assert system.check_network(needed=True).fix == "export https_proxy=http://HOST:PORT"


def test_no_route_matters_only_while_something_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(system, "OUTSIDE", "no-such-host.invalid")
    assert system.check_network(needed=False).status == "ok"
    found = system.check_network(needed=True)
    assert found.status == "warn" and "export https_proxy=http://" in found.fix
    assert "./workshop data" in found.fix


def test_the_container_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(system, "DOCKER", tmp_path / "none")
    assert system.check_container().what.startswith("none")
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/workshop.sif")
    monkeypatch.setenv("APPTAINER_NAME", "workshop.sif")
    assert system.check_container().what == "in an Apptainer container workshop.sif"
