"""Puts Horovod into the environment.

PyPI has no wheel of it, so it is compiled here: once, into a cache keyed by everything the result
depends on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
import time
import zlib
from pathlib import Path

from tfworkshop.environment.logged import failure, run_logged
from tfworkshop.environment.package_index import fetch
from tfworkshop.environment.python_install import cache_folder
from tfworkshop.environment.venv import changing, pip_install, python_of, read_stamp, write_stamp
from tfworkshop.problem import Problem
from tfworkshop.progress import say

HOROVOD_VERSION = "0.28.1"
SDIST_DIGEST = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PATCHES = (  # file, what stands in it once, what takes its place
    (  # g++ 14 and later refuse to assign to a constant, even in a function that is never called
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h",
        "  const size_type count_;\n",
        "  size_type count_;\n",
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
BUILD = f"{HOROVOD_VERSION}-{zlib.crc32(repr(PATCHES).encode()):08x}"  # of which source
# g++ 13 and later no longer include these indirectly.
INCLUDES = "-include stdexcept -include cstdint"
GXX = (11, 15)  # tried: 14, patched as here, and 12, unpatched; the others probably work
WITHOUT = "WORKSHOP_HOROVOD=0 ./workshop test runs without Horovod."


def nccl_home() -> str | None:
    """Where nccl.h is, if a compiler could find it."""
    named = [os.environ.get(name) for name in ("HOROVOD_NCCL_HOME", "NCCL_HOME", "CUDA_HOME")]
    for home in filter(None, [*named, "/usr", "/usr/local", "/usr/local/cuda"]):
        if (Path(home) / "include" / "nccl.h").exists():
            return home
    return None


def with_mpi() -> bool:
    """Only if asked for: then even a single process starts MPI, which costs time and may fail."""
    return os.environ.get("HOROVOD_WITH_MPI") == "1"


def build_settings(tensorflow: str) -> dict[str, str]:
    """Horovod's own build variables; one that is already set in the shell wins."""
    chosen = ["WITH_TENSORFLOW", "WITHOUT_PYTORCH", "WITHOUT_MXNET", "WITH_GLOO"]
    chosen.append("WITH_MPI" if with_mpi() else "WITHOUT_MPI")
    settings = {f"HOROVOD_{name}": "1" for name in chosen}
    home = nccl_home()
    if "and-cuda" in tensorflow and shutil.which("nvcc") and home:
        settings.update(HOROVOD_GPU_OPERATIONS="NCCL", HOROVOD_NCCL_HOME=home)
    own = {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}
    return {**settings, **own}


def wheel_key(python: str, tensorflow: str, settings: dict[str, str]) -> str:
    """A folder name that differs wherever the compiled library would."""
    parts = ["horovod", BUILD, tensorflow, f"py{python}", sysconfig.get_platform()]
    parts += ["gloo", "mpi"] if "HOROVOD_WITH_MPI" in settings else ["gloo"]
    parts += [value for name, value in settings.items() if name == "HOROVOD_GPU_OPERATIONS"]
    return re.sub(r"[^\w.]+", "-", "-".join(parts)).lower()


def compiler() -> str:
    return os.environ.get("CXX") or "g++"


def check_compiler() -> None:
    if with_mpi() and not shutil.which("mpicxx"):
        raise Problem(
            "HOROVOD_WITH_MPI=1, and mpicxx is missing. Type: sudo apt install libopenmpi-dev "
            "openmpi-bin (on a cluster: load the module of its MPI), or unset the variable."
        )
    missing = [tool for tool in (compiler(), "make") if not shutil.which(tool)]
    if missing:
        are = "are" if missing[1:] else "is"
        raise Problem(
            f"Horovod is compiled here, and {' and '.join(missing)} {are} missing. Type: sudo apt "
            f"install build-essential (on a cluster: module load gcc). {WITHOUT}"
        )


def compiler_version() -> int | None:
    """The first number of g++'s version; None for another compiler."""
    asked = subprocess.run([compiler(), "--version"], capture_output=True, text=True)
    found = re.match(r"\S*g\+\+\S* \(.*?\) (\d+)\.", asked.stdout)
    return int(found[1]) if found else None


def unpack_patched(sdist: Path, folder: Path) -> Path:
    """Horovod's source in `folder`, patched so that today's compilers accept it."""
    checked = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # newer Pythons warn
    with tarfile.open(sdist) as archive:  # verified: its paths are known to be good
        archive.extractall(folder, **checked)
    source = folder / f"horovod-{HOROVOD_VERSION}"
    for name, old, new in PATCHES:
        text = (source / name).read_text()
        if text.count(old) != 1:
            raise Problem(f"{name} is not the one of Horovod {HOROVOD_VERSION}. {WITHOUT}")
        (source / name).write_text(text.replace(old, new))
    return source


def build_doing(line: str) -> str | None:
    found = re.match(r"\s*\[\s*(\d+)%\] (?:Building|Linking) .*?([^/\s]+?)(?:\.o)?\s*$", line)
    return f"{found.group(1)} % {found.group(2)}" if found else None


def build_wheel(python: str, target: Path, settings: dict[str, str]) -> None:
    """Compile the wheel into the folder `target`; an interrupted build leaves nothing there."""
    check_compiler()
    wheels = target.parent
    try:
        wheels.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="building-", dir=wheels))
    except OSError as error:
        raise Problem(
            f"cannot write in {wheels} ({error.strerror}). Name another folder for the "
            "build: WORKSHOP_CACHE=$HOME/workshop-cache ./workshop ..."
        ) from None
    log = wheels / f"{target.name}.log"
    # Not pip's own cache: it may hold a wheel that was built for another TensorFlow.
    command = [python, "-I", "-m", "pip", "wheel", "-v", "--disable-pip-version-check"]
    command += ["--no-input", "--no-cache-dir", "--no-build-isolation", "--no-deps"]
    env = {**os.environ, **settings, "TMPDIR": str(scratch)}
    env["CXXFLAGS"] = f"{os.environ.get('CXXFLAGS', '')} {INCLUDES}".strip()
    env.pop("PYTHONPATH", None)
    env.setdefault("HOROVOD_CMAKE", str(Path(python).parent / "cmake"))
    env.setdefault("MAKEFLAGS", f"-j{min(os.cpu_count() or 1, 8)}")
    try:
        file = f"horovod-{HOROVOD_VERSION}.tar.gz"
        source = unpack_patched(fetch("horovod", file, SDIST_DIGEST, scratch), scratch)
        command += ["--wheel-dir", str(scratch / "out"), str(source)]
        if run_logged(command, log, "Compiling Horovod", build_doing, env) != 0:
            raise failure(f"Horovod did not compile. {WITHOUT}", log)
        target.mkdir(exist_ok=True)
        for wheel in (scratch / "out").glob("*.whl"):
            wheel.replace(target / wheel.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def import_error(python: str) -> str | None:
    """None if Horovod can be imported, else the last line of the error."""
    env, code = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, "import horovod.tensorflow"
    tried = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, env=env)
    return (tried.stderr.strip().splitlines() or ["?"])[-1] if tried.returncode else None


def ensure_horovod(folder: Path) -> None:
    """Horovod in the venv `folder` (with its test layer); the stamp remembers that it works."""
    wanted = BUILD + ("+mpi" if with_mpi() else "")
    enough = (wanted, f"{BUILD}+mpi")
    if read_stamp(folder).get("horovod") in enough:
        return
    with changing(folder):
        stamp = read_stamp(folder)
        if stamp.get("horovod") in enough:
            return
        python = python_of(folder)
        if "horovod" in stamp or with_mpi() or import_error(python):  # an older one, or none
            settings = build_settings(stamp["tensorflow"])
            key = wheel_key(stamp["python"], stamp["tensorflow"], settings)
            target = cache_folder() / "wheels" / key
            if not any(target.glob("*.whl")):
                say("Compiling Horovod (only once): 4 to 7 minutes on 2 cores.")
                started = time.monotonic()
                build_wheel(python, target, settings)
                say(f"Horovod is compiled, after {time.monotonic() - started:.0f} s.")
            wheels = [str(wheel) for wheel in target.glob("*.whl")]
            pip_install(folder, ["--no-deps", "--force-reinstall", *wheels], "Installing Horovod")
            problem = import_error(python)
            if problem:
                raise Problem(f"Horovod is installed but does not load: {problem}. {WITHOUT}")
        write_stamp(folder, {**stamp, "horovod": wanted})
