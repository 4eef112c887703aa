"""Two ranks, started once for all that needs them here: a mystery, a healthy script, a stranger's.

two_ranks.py FOLDER, in each rank: the scripts are there; leaves NAME.timeline and what they print.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

STEPS, BATCH = 16, 16
HEALTHY = ("healthy_1", "healthy_2")


@functools.cache
def ran(small: Path) -> Path:
    """The folder in which they ran: mystery_7, HEALTHY, stranger."""
    pytest.importorskip("horovod", reason="needs Horovod: ./workshop setup --horovod")
    from tests.conftest import stage_environment
    from tfworkshop.mysteries.scripts import MYSTERIES, Mystery, made
    from tfworkshop.stages import ROOT

    folder = Path(tempfile.mkdtemp(prefix="two_ranks_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    texts = {"mystery_7": made(MYSTERIES[-1]), **dict.fromkeys(HEALTHY, made(Mystery(0, "")))}
    texts["stranger"] = (ROOT / "tests/strangers/ranks.py").read_text()
    for name, text in texts.items():
        (folder / name).mkdir()
        (folder / name / "train_MNIST.py").write_text(text)
    run = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2"]
    words = [sys.executable, str(Path(__file__)), str(folder), str(small)]
    env = stage_environment(PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="2")
    env |= {"HOROVOD_TIMELINE": "DYNAMIC", "HOROVOD_CACHE_CAPACITY": "0"}  # see main(), below
    env |= {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a core for each rank
    ended = subprocess.run([*run, *words], env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return folder


def main(folder: Path, data: str) -> None:
    import horovod.tensorflow as hvd

    with contextlib.suppress(PermissionError):  # other tests must not make a rank late
        os.nice(-10)
    hvd.init()
    for name in ("mystery_7", *HEALTHY, "stranger"):
        os.chdir(folder / name)
        words = ["--steps", str(STEPS), "--batch-size", str(BATCH), "--data", data]
        sys.argv = ["train_MNIST.py", *(words if name != "stranger" else [])]
        hvd.start_timeline(str(folder / name / "timeline.json"))
        try:
            runpy.run_path("train_MNIST.py", run_name="__main__")
        except SystemExit as end:
            assert not end.code, end.code
        hvd.allgather_object(None)  # all are done
        hvd.stop_timeline()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
