"""xray of a script's step. python -m tfworkshop.mysteries.placement SCRIPT OUT.json: for the check, in
a process of its own, because xray hides the GPU from the process that it runs in.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tfworkshop.files import save
from tfworkshop.xray.command import load_tensorflow, quiet_cpp


def find(script: Path, name: str) -> list[dict]:
    """A case without XLA and one with it."""
    with quiet_cpp(), tempfile.TemporaryDirectory() as folder:
        load_tensorflow()
        from tfworkshop.xray import predict

        return [{**case, "name": name} for case in predict.script(script, Path(folder))]


def keep(cases: list[dict], path: Path) -> None:
    text = json.dumps({"cases": cases}, indent=1) + "\n"
    save(path, lambda part: part.write_text(text, encoding="utf-8"))


if __name__ == "__main__":
    keep(find(Path(sys.argv[1]).resolve(), "mystery"), Path(sys.argv[2]))
