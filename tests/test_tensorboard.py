"""The README's TensorBoard command, and what the plugin then answers."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.conftest import stage_environment
from tfworkshop.processes import started
from tfworkshop.report.screenshots import FOLDER

pytestmark = pytest.mark.slow

COMMAND = re.compile(r"^tensorboard (--logdir logs/off .*)$", re.M)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the Profile plugin of a real TensorBoard, started as the README says."""
    folder = tmp_path_factory.mktemp("tensorboard")
    shutil.copytree(FOLDER / "sample", folder / "logs" / "off")
    (words,) = COMMAND.findall((FOLDER / "README.md").read_text())
    command = [sys.executable, "-m", "tensorboard.main", *words.split(), "--port", "0"]
    options = {"cwd": folder, "env": stage_environment(), "stderr": subprocess.PIPE}
    with started(command, **options) as server:
        lines = iter(server.stderr.readline, "")
        addresses = (re.search(r"TensorBoard .* at (http://\S+)", line) for line in lines)
        address = next(filter(None, addresses))
        yield f"{address[1]}data/plugin/profile"


def ask(url: str, **query: str) -> object:
    with urllib.request.urlopen(f"{url}?{urlencode(query)}", timeout=60) as answer:
        content = answer.read()
        zipped = answer.headers["Content-Encoding"] == "gzip"
    return json.loads(gzip.decompress(content) if zipped else content)


def test_tensorboard_shows_the_sample(plugin: str) -> None:
    assert ask(f"{plugin}/runs") == ["run1"]
    tools = ask(f"{plugin}/run_tools", run="run1")
    for name in ("overview_page", "input_pipeline_analyzer", "framework_op_stats", "trace_viewer"):
        assert any(tool.startswith(name) for tool in tools), tools
    parts = ask(f"{plugin}/data", run="run1", tag="overview_page", host="sample")
    facts = {name: value for part in parts for name, value in (part.get("p") or {}).items()}
    assert float(facts["steptime_ms_average"]) > 0
    assert "HIGHLY input-bound" in facts["statement"]
