"""Builds the stand-in for an environment's TensorFlow, and says how to start a program on it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tfworkshop import processes
from tfworkshop.files import cache_folder, results_folder
from tfworkshop.ideal_gpu.generate import generate
from tfworkshop.problem import Problem
from tfworkshop.stages import ROOT

SOURCES = Path(__file__).parent
COUNTED = SOURCES / "counted.py"
LIBRARY = "libidealgpu.so"
COMPILE = ["cc", "-O2", "-fPIC", "-mtls-dialect=gnu2", "-Wall", "-Wno-deprecated-declarations"]
# The names that TensorFlow opens. Its configuration has the versions of most of them.
VERSIONED = ["cudart", "cublas", "cudnn", "cufft", "cusolver", "cusparse", "cupti"]
FIXED = ["libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2"]
ENVIRONMENT = "IDEAL_GPU_FOLDER"  # set while a program runs on it


def is_in_use() -> bool:
    """Whether this process was started on the ideal GPU."""
    return ENVIRONMENT in os.environ


def restart_on_it(argv: list[str]) -> None:
    """Start this ./workshop again, in the same process, with the ideal GPU; once."""
    if not is_in_use():
        command = [sys.executable, str(ROOT / "tfworkshop" / "__main__.py"), *argv]
        os.execve(sys.executable, command, environment(Path(sys.executable)))


def environment(python: Path, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """These variables and those with which a program of this Python finds the ideal GPU.

    It is built if need be.
    """
    folder = build(python)
    toolkit = folder / "toolkit"
    variables = dict(variables)
    variables[ENVIRONMENT] = str(folder)
    variables["WORKSHOP_RESULTS"] = str(results_folder() / "ideal_gpu")  # beside this machine's own
    variables["LD_LIBRARY_PATH"] = join(folder, variables.get("LD_LIBRARY_PATH"))
    # XLA looks for ptxas on PATH first: a CUDA toolkit of this machine must not come before ours.
    path = join(python.parent, variables.get("PATH"))
    variables["PATH"] = join(toolkit / "bin", path)
    flags = [f"--xla_gpu_cuda_data_dir={toolkit}", variables.get("XLA_FLAGS", "")]
    variables["XLA_FLAGS"] = " ".join(flags).strip()
    return variables


def join(first: Path, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else str(first)


def build(python: Path) -> Path:
    """The folder with the libraries for this Python's TensorFlow; seconds the first time."""
    package = find_tensorflow(python)
    version = find_version(package)
    folder = cache_folder() / "ideal_gpu" / f"{version}-{digest()}"
    if not folder.exists():
        if not shutil.which("cc"):
            raise Problem("the ideal GPU needs a C compiler: install gcc, or another as cc")
        print(f"Building the ideal GPU for TensorFlow {version} ...", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            work = Path(name) / "work"
            result = Path(name) / "result"
            work.mkdir()
            compile_library(package / "include", work, result)
            if not folder.exists():  # another process may have been faster
                result.rename(folder)
    return folder


def find_tensorflow(python: Path) -> Path:
    """The folder of the TensorFlow package, which holds CUDA's headers and TensorFlow's lists."""
    code = "import importlib.util as u; print(u.find_spec('tensorflow').origin)"
    finished = processes.run([str(python), "-c", code], cwd="/")
    package = Path(finished.stdout.strip()).parent
    if finished.status or not (package / "include/third_party/gpus/cuda/include/cuda.h").exists():
        raise Problem(f"{python} has no TensorFlow for GPUs. Type: ./workshop setup --ideal-gpu")
    return package


def find_version(package: Path) -> str:
    names = [path.name for path in package.parent.glob("tensorflow-*.dist-info")]
    match = re.fullmatch(r"tensorflow-(.*)\.dist-info", names[0]) if names else None
    if not match:
        raise Problem(f"{package} does not say which version of TensorFlow it is")
    return match[1]


def digest() -> str:
    """Changes with any file that the libraries are made of."""
    sha = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.is_file():
            sha.update(path.name.encode())
            sha.update(path.read_bytes())
    return sha.hexdigest()[:12]


def compile_library(include: Path, work: Path, result: Path) -> None:
    """Compile all sources and the generated one, and link them under every library's name."""
    gpus = include / "third_party" / "gpus"
    headers = ["cuda/include", "cuda/extras/CUPTI/include", "cuda/libcudacxx/include"]
    headers += ["cuda/nvml/include", "cudnn/include"]
    flags = [f"-I{gpus / name}" for name in headers]
    objects = []
    for source in sorted(SOURCES.glob("*.c")):
        objects.append(work / f"{source.stem}.o")
        call([*COMPILE, *flags, "-c", str(source), "-o", str(objects[-1])])
    generated = work / "generated.c"
    generated.write_text(generate(include / "xla" / "tsl" / "cuda", defined_names(objects)))
    objects.append(work / "generated.o")
    call(["cc", "-O0", "-fPIC", "-w", "-c", str(generated), "-o", str(objects[-1])])
    result.mkdir()
    link = ["cc", "-shared", f"-Wl,-soname,{LIBRARY}", "-Wl,-Bsymbolic"]
    call([*link, "-o", str(result / LIBRARY), *map(str, objects), "-lpthread", "-ldl"])
    for name in library_names((gpus / "cuda" / "cuda_config.h").read_text()):
        (result / name).symlink_to(LIBRARY)
    for file, place in (("ptxas", "bin/ptxas"), ("libdevice.ll", "nvvm/libdevice/libdevice.10.bc")):
        target = result / "toolkit" / place
        target.parent.mkdir(parents=True)
        shutil.copy(SOURCES / file, target)


def library_names(configuration: str) -> list[str]:
    names = list(FIXED)
    for library in VERSIONED:
        match = re.search(rf'TF_{library.upper()}_VERSION "(\d+)"', configuration)
        if match:
            names.append(f"lib{library}.so.{match[1]}")
            if library == "cublas":
                names.append(f"libcublasLt.so.{match[1]}")
    return names


def defined_names(objects: list[Path]) -> set[str]:
    listing = call(["nm", "--defined-only", "--extern-only", *map(str, objects)])
    return {line.split()[-1] for line in listing.splitlines() if " T " in line}


def call(command: list[str]) -> str:
    finished = processes.run(command)
    if finished.status:
        raise Problem(f"cannot build the ideal GPU: {' '.join(command[:1])}: {finished.reason}")
    return finished.stdout
