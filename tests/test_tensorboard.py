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
from tfworkshop.report.screenshots import FOLDER

COMMAND = re.compile(r"^tensorboard (--logdir logs/off .*)$", re.M)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the Profile plugin of a real TensorBoard, started as the README says."""
    folder = tmp_path_factory.mktemp("tensorboard")
    shutil.copytree(FOLDER / "sample", folder / "logs" / "off")
    (words,) = COMMAND.findall((FOLDER / "README.md").read_text())
    command = [sys.executable, "-m", "tensorboard.main", *words.split(), "--port", "0"]
    with subprocess.Popen(
        command, cwd=folder, env=stage_environment(), stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr
            said = []
            for line in server.stderr:  # one of its first lines is the address
                said.append(line)
                address = re.search(r"http://\S+", line)
                if address and "TensorBoard" in line:
                    break
            else:
                pytest.fail("".join(said))
            yield f"{address[0]}data/plugin/profile"
        finally:
            server.terminate()


def ask(url: str, **query: str) -> object:
    with urllib.request.urlopen(f"{url}?{urlencode(query)}", timeout=60) as answer:
        content = answer.read()
        zipped = answer.headers["Content-Encoding"] == "gzip"
    return json.loads(gzip.decompress(content) if zipped else content)


def test_tensorboard_finds_the_run_and_its_tools(plugin: str) -> None:
    assert ask(f"{plugin}/runs") == ["run1"]
    tools = ask(f"{plugin}/run_tools", run="run1")
    for name in ("overview_page", "input_pipeline_analyzer", "framework_op_stats", "trace_viewer"):
        assert any(tool.startswith(name) for tool in tools), tools
    hosts = ask(f"{plugin}/hosts", run="run1", tag="overview_page^")
    assert hosts == ["sample"]


def test_tensorboard_shows_the_overview(plugin: str) -> None:
    parts = ask(f"{plugin}/data", run="run1", tag="overview_page^", host="sample")
    facts = {name: value for part in parts for name, value in (part.get("p") or {}).items()}
    assert float(facts["steptime_ms_average"]) > 0
    assert "HIGHLY input-bound" in facts["statement"]
