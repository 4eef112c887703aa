"""What TensorFlow can do here, judged from the answers of the steps."""

from __future__ import annotations

import os
import re

from tfworkshop.doctor import system
from tfworkshop.doctor.finding import Finding, fail, ok, warn
from tfworkshop.doctor.probe import SAFE_ISA, Answers
from tfworkshop.doctor.system import install, installed, pins, remake
from tfworkshop.environment import start
from tfworkshop.machine import TENSORFLOW_VERSION, has_nvidia_gpu, in_container

OLDEST_DRIVER = 525  # of CUDA 12, by NVIDIA's table of minor version compatibility
# Lines of TensorFlow's own log that say why it found no GPU
NO_GPU = re.compile(
    r"(Could not load dynamic library '[^']+'|failed call to cuInit.*|CUDA_ERROR_\w+.*"
    r"|.*does not match DSO version.*|Cannot dlopen .*?libraries)",
    re.I,
)
# As the stages look for them: how many processes the launcher has started
LAUNCHERS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
PROFILER = ("tensorboard", "tensorboard-plugin-profile", "protobuf")


def check_tensorflow(answers: Answers) -> Finding:
    check, error = "tensorflow", answers.errors.get("tensorflow")
    if error is None:
        found = answers.results["tensorflow"]
        cuda = f"built for CUDA {found['cuda']}" if found["cuda_build"] else "built for the CPU"
        what = f"{found['version']} with Keras {found['keras']}, {cuda}, imported in"
        return ok(check, f"{what} {found['seconds']} s")
    what = f"import tensorflow: {shortened(error)}; so nothing that needs it was checked"
    fix = fix_versions("tensorflow", "keras", "numpy", "protobuf")
    if "SIGILL" in error:
        fix = "use a machine whose CPU has AVX (grep avx /proc/cpuinfo): the wheels need it"
    elif error.startswith("no answer"):
        again = "WORKSHOP_VENV=/local/disk/venv ./workshop setup"
        fix = f"put the environment on a faster disk: {again}"
    return fail(check, what, fix)


def shortened(text: str, length: int = 150) -> str:
    return text if len(text) <= length else text[: length - 4] + " ..."


def fix_versions(*names: str) -> str:
    """How to install those that differ from the pins; if none does, a new environment."""
    wanted = {**pins(), "tensorflow": TENSORFLOW_VERSION}
    other = [name for name in names if installed(name) != wanted[name]]
    return install(*other) if other and "tensorflow" not in other else remake()


# --- the GPUs ---


def check_gpus(answers: Answers) -> Finding:
    """Which GPUs TensorFlow sees; if none, the first reason that applies."""
    check, seen = "gpu", answers.results.get("gpus", [])
    driver, hidden = system.driver_version(), os.environ.get("CUDA_VISIBLE_DEVICES")
    note = f" (CUDA_VISIBLE_DEVICES={hidden})" if hidden else ""
    if seen:
        names = " and ".join(sorted({gpu["name"] for gpu in seen}))
        return ok(check, f"{len(seen)} x {names}{note}, driver {driver}")
    if not has_nvidia_gpu():
        if not system.nvidia_on_the_bus():
            return ok(check, "no NVIDIA GPU here: the stages run on the CPU")
        what = "there is an NVIDIA GPU, but its driver is not loaded: the stages run on the CPU"
        fix = f"install the NVIDIA driver, {OLDEST_DRIVER} or later; then ./workshop setup"
        return warn(check, what, fix)
    if hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles"):
        what = f"CUDA_VISIBLE_DEVICES='{hidden}' hides the GPU: the stages would run on the CPU"
        return fail(check, what, "unset CUDA_VISIBLE_DEVICES")
    if not answers.results["tensorflow"]["cuda_build"]:
        unset = "unset WORKSHOP_TENSORFLOW; " if os.environ.get("WORKSHOP_TENSORFLOW") else ""
        fix = remake() if start.use_own_python() else f"{unset}./workshop setup"
        return fail(check, "TensorFlow is built for the CPU, this machine has a GPU", fix)
    if driver and int(driver.split(".")[0]) < OLDEST_DRIVER:
        what = f"the NVIDIA driver {driver} is too old for CUDA 12"
        return fail(check, what, f"ask for driver {OLDEST_DRIVER} or later, or another node")
    if not answers.results.get("libraries", {}).get("cuda"):
        if in_container():
            what = "the driver is not in the container (no libcuda.so.1): started without --nv"
            return fail(check, what, "apptainer exec --nv IMAGE ... (or singularity exec --nv)")
        what = "the driver is loaded, but its library libcuda.so.1 is not found"
        fix = "add its folder to LD_LIBRARY_PATH, or install the driver's CUDA part "
        return fail(check, what, fix + "(libcuda1 in Debian)")
    said = list(dict.fromkeys(NO_GPU.findall(answers.said)))
    why = shortened("; ".join(said[-3:])) or "TensorFlow's log does not say why"
    fix = f"nvidia-smi must list the GPU (in a job: ask for one); if it does: {remake()}"
    return fail(check, f"TensorFlow sees no GPU{note}: {why}", fix)


# --- compiling, and number formats ---


def check_xla(answers: Answers) -> Finding:
    error = answers.errors.get("xla")
    if error:
        return fail("xla", f"a small function did not compile: {shortened(error)}", remake())
    seconds = answers.results["xla"]["seconds"]
    return ok("xla", f"compiles a small function correctly, in {seconds} s")


def check_precision(answers: Answers) -> Finding:
    """By compute capability on a GPU; measured on a CPU, whose flags are not reliable."""
    check, seen = "precision", answers.results.get("gpus")
    if seen:
        capability = tuple(min(gpu["capability"] or (0, 0) for gpu in seen))
        units = "no tensor cores, use float32"
        if capability >= (7, 0):
            newer = "bfloat16 and TF32" if capability >= (8, 0) else "none for bfloat16"
            units = f"tensor cores for float16, {newer}"
        return ok(check, f"compute capability {'.'.join(map(str, capability))}: {units}")
    if "precision" in answers.errors:
        what = f"bfloat16 does not work here: {shortened(answers.errors['precision'])}"
        return warn(check, what, "give stages 05 and 06 --precision float32")
    single, half = (answers.results["precision"][name] for name in ("float32", "bfloat16"))
    pays = "bfloat16 pays" if half < 0.9 * single else "use float32"
    what = f"a convolution's step takes {single:.1f} ms in float32, {half:.1f} ms in bfloat16"
    return ok(check, f"{what}: {pays} here; float16 is for GPUs")


def check_amx(amx: Answers) -> Finding:
    """CPUs advertise AMX in their flags; on some machines using it ends the program."""
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA")
    error = amx.errors.get("amx")
    if not error:
        times = amx.results.get("precision", {})
        took = f", the bfloat16 step in {times['bfloat16']:.1f} ms" if times else ""
        use = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX lets stages 05 and 06 use it"
        return ok("amx", f"works{took}; {use}")
    what = f"this CPU advertises AMX, but a bfloat16 product with it failed: {shortened(error)}"
    fix = f"export ONEDNN_MAX_CPU_ISA={SAFE_ISA}"
    if allowed is None:
        return warn("amx", what, f"{fix} for your own code; stages 05 and 06 set it")
    if "AMX" in allowed.upper() or allowed.upper() in ("ALL", "DEFAULT"):
        return fail("amx", f"{what}; ONEDNN_MAX_CPU_ISA={allowed} allows it", fix)
    return ok("amx", f"{what}; ONEDNN_MAX_CPU_ISA={allowed} keeps it off")


# --- the profiler ---


def check_profiler(answers: Answers) -> list[Finding]:
    """On a GPU machine also the library that it uses, and the permission."""
    found = [check_recording(answers)]
    if has_nvidia_gpu():
        found += [check_cupti(answers), check_counters(answers)]
    return [*found, check_plugin(answers), check_pkg_resources(answers)]


def check_recording(answers: Answers) -> Finding:
    check, error = "profiler", answers.errors.get("profiler")
    if error:
        return fail(check, f"recorded no profile: {shortened(error)}", remake())
    if not answers.results.get("gpus"):
        return ok(check, "records a step, on the CPU")
    if not answers.results["profiler"]["gpu"]:
        said = re.findall(r"CUPTI_ERROR_\w+", answers.said)
        what = f"the recorded step has no GPU events ({', '.join(said[-1:]) or 'no reason given'})"
        fix = "see the lines on cupti and counters; if both are ok, try another node"
        return warn(check, what, fix)
    return ok(check, "records a step, with its GPU events")


def check_cupti(answers: Answers) -> Finding:
    found = answers.results.get("libraries", {}).get("cupti")
    if found:
        return ok("cupti", f"{found} is found")
    fix = "export LD_LIBRARY_PATH=/usr/local/cuda/extras/CUPTI/lib64:$LD_LIBRARY_PATH"
    return warn("cupti", "libcupti is not found: profiles will lack the GPU", fix)


def check_counters(answers: Answers) -> Finding:
    if not system.counters_restricted():
        return ok("counters", "the driver does not restrict the GPU's counters to administrators")
    what = "the driver restricts the GPU's counters to administrators (RmProfilingAdminOnly: 1)"
    if answers.results.get("profiler", {}).get("gpu"):
        return ok("counters", f"{what}; the profile has GPU events anyway")
    fix = "an administrator must put this in a file in /etc/modprobe.d and reboot: "
    fix += "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
    return warn("counters", f"{what}: profiles may lack the GPU", fix)


def check_plugin(answers: Answers) -> Finding:
    check, error = "plugin", answers.errors.get("plugin")
    version = installed("tensorboard-plugin-profile")
    if error:
        what = f"TensorBoard's profile plugin {version or ''} fails: {shortened(error)}"
        fix = fix_versions(*PROFILER)
        if version == pins()["tensorboard-plugin-profile"] and fix == remake():
            again = install("tensorboard-plugin-profile")
            fix = again.replace(" install ", " install --force-reinstall ")
        return fail(check, what, fix)
    tensorflow = answers.results["tensorflow"]["version"]
    if (version or "").split(".")[:2] != tensorflow.split(".")[:2]:
        what = f"tensorboard-plugin-profile {version} is not the one for TensorFlow {tensorflow}"
        return warn(check, what, install("tensorboard-plugin-profile", "protobuf"))
    what = f"tensorboard-plugin-profile {version} (protobuf {installed('protobuf')})"
    return ok(check, f"{what} reads TensorFlow {tensorflow}'s profile")


def check_pkg_resources(answers: Answers) -> Finding:
    check, version = "setuptools", installed("setuptools")
    if "pkg_resources" in answers.errors:
        what = f"setuptools {version} has no working pkg_resources, which TensorBoard imports"
        return fail(check, what, install("setuptools"))
    return ok(check, f"{version}, with the pkg_resources that TensorBoard imports")


# --- many processes ---


def number_of(name: str) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 1


def check_horovod(answers: Answers) -> Finding:
    """What it is built with, and whether it sees as many ranks as a launcher has started."""
    check, error = "horovod", answers.errors.get("horovod")
    launcher = max(LAUNCHERS, key=number_of)
    started, gpus = number_of(launcher), len(answers.results.get("gpus", []))
    asked = f"{launcher}={started}"
    if error and installed("horovod") is None:
        setup = "./workshop setup --horovod"
        if started > 1:
            return fail(
                check, f"not installed, and {asked}: every process would train alone", setup
            )
        if gpus > 1:
            return warn(check, "not installed: the stages use one of the GPUs", setup)
        return ok(check, f"not installed; for many ranks: {setup}")
    if error:
        again = "" if start.use_own_python() else " --horovod"
        what = f"{installed('horovod')} does not work: {shortened(error)}"
        return fail(check, what, remake() + again)
    found = answers.results["horovod"]
    what = f"{found['version']} for TensorFlow, with {', '.join(found['built']) or 'no exchange'}"
    if found["size"] < started:
        fix = f"horovodrun -np {started} python train_MNIST.py"
        if "MPI" not in found["built"]:
            fix += " (this Horovod is built without MPI, so mpiexec and srun cannot join its ranks)"
        return fail(check, f"{what}; it sees {found['size']} rank(s), but {asked}", fix)
    if gpus > 1 and "NCCL" not in found["built"]:
        what += "; without NCCL the GPUs exchange through the host"
        fix = "./workshop setup --horovod where nvcc and nccl.h are, or the container"
        return warn(check, what, fix)
    ranks = f"{found['size']} of {started} rank(s) seen" if started > 1 else "1 rank, no launcher"
    return ok(check, f"{what}; {ranks}")
