"""xray of a script's step. In a process of its own for the check: xray hides GPUs from its process.

python -m tfworkshop.mysteries.placement SCRIPT
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tfworkshop.files import save_record
from tfworkshop.mysteries.evidence import XRAY, Copies
from tfworkshop.xray.command import load_tensorflow, quiet_cpp


def xray(script: Path) -> list[dict]:
    """Predict a step without XLA and one with it, and save the copies of the first."""
    with quiet_cpp(), tempfile.TemporaryDirectory() as folder:
        load_tensorflow()
        from tfworkshop.xray import predict

        cases = list(predict.script(script.resolve(), Path(folder)))
    save_copies(cases, script.parent)
    return cases


def save_copies(cases: list[dict], folder: Path) -> None:
    without_xla = next(case for case in cases if case["xla"] == "off")
    causes = [copy["cause"] for copy in without_xla["copies"]]
    save_record(folder / XRAY, Copies(causes))


if __name__ == "__main__":
    xray(Path(sys.argv[1]))
