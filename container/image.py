"""What workshop.def runs while the image is built and tested. Needs no GPU.

python3 -m container.image missing REQUIREMENTS...   the pins of packages that the image lacks
python3 -m container.image check                     one line per check; status 1 if one fails
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement  # TensorFlow needs it, so it is there

from tfworkshop import processes
from tfworkshop.doctor import separate_process, system
from tfworkshop.doctor.finding import Finding, as_text, fail, has_failure, ok
from tfworkshop.stages import ROOT

# If pip followed dependencies it would install these: another TensorFlow, another CUDA.
INTRUDERS = ("tensorflow-cpu", "nvidia-cudnn-cu12", "nvidia-cublas-cu12", "nvidia-nccl-cu12")
SETTINGS = {"WORKSHOP_PYTHON_ENV": "system", "PYTHONNOUSERSITE": "1", "TF_USE_LEGACY_KERAS": "0"}
FIX = "build the image again, from container/workshop.def as it is"


def find_missing(files: list[str]) -> list[str]:
    """What to install: never another version of a package that the image has."""
    missing = []
    for file in files:
        for line in Path(file).read_text().splitlines():
            pin = line.partition("#")[0].strip()
            if pin and is_missing(Requirement(pin)):
                missing.append(pin)
    return missing


def is_missing(requirement: Requirement) -> bool:
    if requirement.marker and not requirement.marker.evaluate():
        return False  # for another Python
    return system.installed(requirement.name) is None


# --- check ---


def check_settings() -> Finding:
    wrong = [name for name, value in SETTINGS.items() if os.environ.get(name) != value]
    if wrong:
        return fail("settings", f"not as %environment sets them: {', '.join(wrong)}", FIX)
    return ok("settings", ", ".join(f"{name}={value}" for name, value in SETTINGS.items()))


def check_build(version: str) -> Finding:
    """TensorFlow must still be NVIDIA's, and the only one."""
    if "+nv" not in version:
        return fail("build", f"TensorFlow {version} is not NVIDIA's build", FIX)
    installed = {str(package.metadata["Name"]) for package in metadata.distributions()}
    intruders = sorted(installed.intersection(INTRUDERS))
    if intruders:
        return fail("build", f"a second TensorFlow or CUDA: {', '.join(intruders)}", FIX)
    return ok("build", f"TensorFlow {version}, and no second TensorFlow or CUDA")


def check_ranks() -> Finding:
    """What many GPUs need: Horovod with MPI and NCCL, and Open MPI's mpirun."""
    if not system.installed("horovod"):
        return fail("ranks", "Horovod is missing", FIX)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import horovod.tensorflow as hvd

    parts = {"MPI": hvd.mpi_built(), "NCCL": hvd.nccl_built(), "mpirun": shutil.which("mpirun")}
    missing = [name for name, part in parts.items() if not part]
    if missing:
        return fail("ranks", f"Horovod loads, but there is no {', no '.join(missing)}", FIX)
    return ok("ranks", f"Horovod has {', '.join(parts)}")


def check_training() -> Finding:
    """Train five steps of stage 02 on generated data."""
    with tempfile.TemporaryDirectory() as folder:
        data, results = Path(folder, "synthetic.npz"), Path(folder, "results.json")
        generate = ["-m", "tfworkshop", "data", "--synthetic", "--output", str(data)]
        train = [str(ROOT / "02_tf_function" / "train_MNIST.py"), "--steps", "5"]
        train += ["--batch-size", "32", "--data", str(data), "--results", str(results)]
        for words in (generate, train):
            finished = processes.run([sys.executable, *words], cwd=ROOT, timeout=600)
            if finished.status != 0:
                return fail("training", f"stage 02 does not train: {finished.reason}", FIX)
        loss = json.loads(results.read_text())["final_loss"]
    return ok("training", f"stage 02 trains on generated data: loss {loss:.3f}")


def check() -> int:
    checks = ["tensorflow", "xla", "profiler", "horovod"]
    findings = [
        system.check_packages(),
        check_build(system.installed("tensorflow") or "(missing)"),
        check_settings(),
    ]
    findings += separate_process.run_checks(checks)
    if not has_failure(findings[-1:]):  # Horovod can be imported
        findings.append(check_ranks())
    findings.append(check_training())
    for finding in findings:
        print(as_text(finding))
    return 1 if has_failure(findings) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["missing"]:
        print("\n".join(find_missing(sys.argv[2:])))
    elif sys.argv[1:] == ["check"]:
        sys.exit(check())
    else:
        sys.exit(__doc__)
