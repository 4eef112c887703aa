"""In the place of a rank's python3: runs the stage, and leaves where it ran and how it ended.

watched.py SCRIPT OPTIONS...   leaves rankN.json in the working folder
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from tests import ranks
from tests.conftest import load_script


def main(script: Path, *options: str) -> None:
    module = load_script((str(script.parent), script.name))
    seen = ranks.trained(module, *options)
    print(seen["ended"].stdout, end="", flush=True)
    record = {name: seen[name] for name in ("made", "before", "digest")}
    record |= {"host": socket.gethostname(), "losses": list(map(float, seen["losses"]))}
    Path(f"rank{module.hvd.rank()}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
