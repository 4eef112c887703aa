"""What 04_tf_profiler keeps of a run: the sample profile and the pictures of its README.

python -m tools.screenshots
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.stages import ROOT

FOLDER = ROOT / "04_tf_profiler"
SAMPLE = FOLDER / "sample" / "plugins" / "profile" / "run1" / "sample.xplane.pb"


def record(script: str, *options: object) -> None:
    """Run a script of the folder, as a reader would."""
    command = [sys.executable, str(FOLDER / script), *map(str, options)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_sample(folder: Path) -> None:
    """Run 1 of the input pipeline, five small steps of it, without the name of this machine."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    small = ["--count", 48, "--batch-size", 8, "--images", folder / "png"]
    record("input_pipeline.py", "--run", 1, "--logdir", folder / "logs", *small)
    (recorded,) = folder.glob("logs/plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(recorded.read_bytes())
    space.hostnames[:] = ["sample"]
    SAMPLE.parent.mkdir(parents=True, exist_ok=True)
    SAMPLE.write_bytes(space.SerializeToString(deterministic=True))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_sample(Path(folder))
        print(f"wrote {SAMPLE.relative_to(ROOT)}: {SAMPLE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
