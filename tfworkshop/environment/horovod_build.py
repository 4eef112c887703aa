"""Adds Horovod to the environment.

The package index has no wheel of it, so it is compiled here: once, into a cache keyed by everything
that the result depends on.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zlib
from pathlib import Path

from tfworkshop import processes
from tfworkshop.environment.venv import installed_requirements
from tfworkshop.files import cache_folder
from tfworkshop.problem import Problem

HOROVOD_VERSION = "0.28.1"
SDIST_DIGEST = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PATCHES = (  # file, what stands in it once, what takes its place
    (  # g++ 14 and later refuse to assign to a constant, even in a function that is never called
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h",
        "  const size_type count_;\n",
        "  size_type count_;\n",
    ),
    (  # XLA's own exchange, on GPUs: it is not used here, and needs headers that 2.21 lacks
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "",
    ),
    (  # on GPUs: TensorFlow 2.21 no longer exports this function
        "horovod/tensorflow/mpi_ops.cc",
        "GpuStreamHandle AsGpuStreamValue(Stream* stream);\n",
        "template <class S> GpuStreamHandle AsGpuStreamValue(S* stream) {\n"
        "  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);\n"
        "}\n",
    ),
    (  # it forgets which network to use, and crashes on a machine whose own name has no address
        "horovod/common/gloo/gloo_context.cc",
        "  assert(global_context.IsEnabled());\n",
        "  gloo_iface_ = global_context.gloo_iface_;\n",
    ),
    (  # with a timeline, rank 0's writer would keep a core busy even when there is nothing to write
        "horovod/common/timeline.cc",
        "    std::this_thread::yield();\n",
        "    std::this_thread::sleep_for(std::chrono::milliseconds(2));\n",
    ),
)
BUILD = f"{HOROVOD_VERSION}-{zlib.crc32(repr(PATCHES).encode()):08x}"  # identifies the source
INCLUDES = "-include stdexcept -include cstdint"  # g++ 13 and later no longer imply these
STAMP = "horovod.txt"  # in the environment: which build it has
WITHOUT = "WORKSHOP_HOROVOD=0 ./workshop test runs without Horovod."
PROGRESS_EVERY_S = 15.0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- what is built ---


def with_mpi() -> bool:
    """Only if asked for: then even a single process starts MPI, which costs time and may fail."""
    return os.environ.get("HOROVOD_WITH_MPI") == "1"


def nccl_home() -> str | None:
    """Where nccl.h is, if a compiler could find it."""
    named = [os.environ.get(name) for name in ("HOROVOD_NCCL_HOME", "NCCL_HOME", "CUDA_HOME")]
    for home in [*named, "/usr", "/usr/local", "/usr/local/cuda"]:
        if home and Path(home, "include", "nccl.h").exists():
            return home
    return None


def build_settings(tensorflow: str) -> dict[str, str]:
    """Horovod's own build variables; one that is set in the shell wins."""
    names = ["WITH_TENSORFLOW", "WITHOUT_PYTORCH", "WITHOUT_MXNET", "WITH_GLOO"]
    names.append("WITH_MPI" if with_mpi() else "WITHOUT_MPI")
    settings = {f"HOROVOD_{name}": "1" for name in names}
    nccl = nccl_home()
    if "and-cuda" in tensorflow and shutil.which("nvcc") and nccl:
        settings["HOROVOD_GPU_OPERATIONS"] = "NCCL"
        settings["HOROVOD_NCCL_HOME"] = nccl
    for name, value in os.environ.items():
        if name.startswith("HOROVOD_"):
            settings[name] = value
    return settings


def wheel_key(tensorflow: str, settings: dict[str, str]) -> str:
    """A folder name that differs wherever the compiled library would."""
    python = "py" + ".".join(platform.python_version_tuple()[:2])
    parts = ["horovod", BUILD, tensorflow, python, sysconfig.get_platform(), "gloo"]
    if "HOROVOD_WITH_MPI" in settings:
        parts.append("mpi")
    if "HOROVOD_GPU_OPERATIONS" in settings:
        parts.append(settings["HOROVOD_GPU_OPERATIONS"])
    return re.sub(r"[^\w.]+", "-", "-".join(parts)).lower()


# --- the compiler ---


def check_compiler() -> None:
    if with_mpi() and not shutil.which("mpicxx"):
        raise Problem(
            "HOROVOD_WITH_MPI=1, and mpicxx is missing. Type: sudo apt install libopenmpi-dev "
            "openmpi-bin (on a cluster: load the module of its MPI), or unset the variable."
        )
    missing = [tool for tool in (os.environ.get("CXX") or "g++", "make") if not shutil.which(tool)]
    if missing:
        raise Problem(
            f"Horovod is compiled here. Missing: {', '.join(missing)}. Type: sudo apt install "
            f"build-essential (on a cluster: module load gcc). {WITHOUT}"
        )


# --- building ---


def run_pip(arguments: list[str], log: Path, failed: str, env: dict[str, str]) -> None:
    """pip, with its output in a log and a line on the screen every 15 s."""
    command = [sys.executable, "-I", "-m", "pip", *arguments]
    started = last_line = time.monotonic()
    with log.open("a") as output:

        def show(line: str) -> None:
            nonlocal last_line
            output.write(f"{line}\n")
            now = time.monotonic()
            compiling = re.match(r"\s*\[\s*(\d+)%\] (?:Building|Linking) ", line)
            if compiling and now - last_line > PROGRESS_EVERY_S:
                last_line = now
                say(f"  {compiling[1]} % compiled after {now - started:.0f} s")

        finished = processes.run(command, on_stdout=show, stderr=subprocess.STDOUT, env=env)
    if finished.status != 0:
        errors = [line for line in finished.stdout.splitlines() if re.search(r"\berror\b", line)]
        for line in errors[:4]:
            say(f"  {line.strip()[:200]}")
        raise Problem(f"{failed}. The full log is {log}. {WITHOUT}")


def get_source(folder: Path, log: Path, env: dict[str, str]) -> Path:
    """Horovod's source in `folder`, patched so that today's compilers accept it."""
    requirement = folder / "horovod.txt"
    requirement.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{SDIST_DIGEST}\n")
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
    download = ["download", *options, "--dest", str(folder), "-r", str(requirement)]
    run_pip(download, log, "Horovod's source cannot be fetched", env)
    with tarfile.open(folder / f"horovod-{HOROVOD_VERSION}.tar.gz") as archive:
        archive.extractall(folder)  # pip has checked its digest
    source = folder / f"horovod-{HOROVOD_VERSION}"
    for name, old, new in PATCHES:
        text = (source / name).read_text()
        assert text.count(old) == 1, f"{name} is not the one of Horovod {HOROVOD_VERSION}"
        (source / name).write_text(text.replace(old, new))
    return source


def build_wheel(target: Path, settings: dict[str, str]) -> None:
    """Compile the wheel into the folder `target`; an interrupted build leaves nothing there."""
    check_compiler()
    wheels = target.parent
    wheels.mkdir(parents=True, exist_ok=True)
    log = wheels / f"{target.name}.log"
    log.unlink(missing_ok=True)
    env = {**os.environ, **settings}
    env["CXXFLAGS"] = f"{os.environ.get('CXXFLAGS', '')} {INCLUDES}".strip()
    env.setdefault("HOROVOD_CMAKE", str(Path(sys.executable).parent / "cmake"))
    env.setdefault("MAKEFLAGS", f"-j{min(os.cpu_count() or 1, 8)}")
    with tempfile.TemporaryDirectory(prefix="building-", dir=wheels) as scratch:
        env["TMPDIR"] = scratch
        source = get_source(Path(scratch), log, env)
        # Not pip's own cache: it may hold a wheel that was built for another TensorFlow.
        options = ["-v", "--no-cache-dir", "--no-build-isolation", "--no-deps"]
        built = Path(scratch) / "wheel"
        build = ["wheel", *options, "--wheel-dir", str(built), str(source)]
        run_pip(build, log, "Horovod did not compile", env)
        target.mkdir(exist_ok=True)
        for wheel in built.glob("*.whl"):
            wheel.replace(target / wheel.name)


# --- installing ---


def ensure_horovod() -> None:
    """Horovod in this environment, which holds the test layer; built if it has to be."""
    folder = Path(sys.prefix)
    requirements = installed_requirements()
    if not requirements:  # a container's Python, say: nothing is installed there
        if importlib.util.find_spec("horovod") is None:
            raise Problem(f"{sys.executable} has no Horovod. {WITHOUT}")
        return
    tensorflow = next(line for line in requirements if re.match(r"tensorflow(-cpu|\[|==)", line))
    settings = build_settings(tensorflow)
    key = wheel_key(tensorflow, settings)
    stamp = folder / STAMP
    with (folder / f"{STAMP}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another ./workshop is compiling Horovod: waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() in (key, f"{key}-mpi"):
            return
        target = cache_folder() / "wheels" / key
        if not any(target.glob("*.whl")):
            say("Compiling Horovod (only once): 4 to 7 minutes on 2 cores.")
            started = time.monotonic()
            build_wheel(target, settings)
            say(f"Horovod is compiled, after {time.monotonic() - started:.0f} s.")
        wheels = [str(wheel) for wheel in target.glob("*.whl")]
        install = ["install", "--no-deps", "--no-index", "--force-reinstall", *wheels]
        run_pip(install, folder / "horovod.log", "Horovod cannot be installed", dict(os.environ))
        attempt = processes.run([sys.executable, "-I", "-c", "import horovod.tensorflow"])
        if attempt.status != 0:
            raise Problem(f"Horovod is installed but does not load: {attempt.reason}. {WITHOUT}")
        stamp.write_text(key)
