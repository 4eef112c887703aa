"""What 04_tf_profiler keeps of a run: the sample profile, and the pictures of its README.

python -m tfworkshop.report.screenshots            the pictures: needs Chromium, a calm machine
python -m tfworkshop.report.screenshots --sample   the sample
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tfworkshop.problem import Problem
from tfworkshop.processes import run
from tfworkshop.stages import ROOT

FOLDER = ROOT / "04_tf_profiler"
SAMPLE = FOLDER / "sample" / "plugins" / "profile" / "run1" / "sample.xplane.pb"
IMAGES = FOLDER / "images"
PICTURES = ("report_run1.png", "timeline_run1.png", "timeline_run4.png")
WIDTH = 1000
# Modules that decide what the pictures show.
MODULES = ("advice", "figures", "layers", "page", "profile", "split", "steps", "trace", "verdict")
HERE = Path(__file__).resolve().parent

# What a picture shows, as the JavaScript that gives its top and its bottom on the page.
REPORT = ("document.querySelector('h1')", "document.querySelector('section.steps')")
TIMELINE = ("document.querySelector('section.timeline')",) * 2
# A step as wide as the timeline, then zoomed out to show its neighbours.
ONE_STEP = """for (const text of ["Step \u203a", "Step \u203a", "\u2212"])
    [...document.querySelectorAll("section.timeline button")]
        .find(button => button.textContent == text).click()"""


def fingerprint() -> str:
    """Hash of the code behind the pictures: the page, its data, the program that is profiled.

    Comments and docstrings of the Python files do not count.
    """
    digest = hashlib.sha256(repr((WIDTH, REPORT, TIMELINE, ONE_STEP)).encode())
    for path in sorted((HERE / "assets").iterdir()):
        digest.update(path.read_bytes())
    for path in (*sorted(HERE / f"{name}.py" for name in MODULES), FOLDER / "input_pipeline.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                node.body = node.body[ast.get_docstring(node) is not None :]
        digest.update(ast.unparse(tree).encode())  # dump() differs from Python to Python
    return digest.hexdigest()


def record(script: str, *options: object) -> None:
    """Run a script of the folder, as a reader would."""
    command = [sys.executable, str(FOLDER / script), *map(str, options)]
    finished = run(command)
    if finished.status:
        raise Problem(f"{script} failed: {finished.reason}")


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
    print(f"wrote {SAMPLE.relative_to(ROOT)}")


def make_pictures(folder: Path) -> None:
    """The report of runs 1 and 4 as a browser shows it."""
    from tests.browser import Browser
    from tfworkshop.report import command as report

    IMAGES.mkdir(exist_ok=True)
    browser = Browser(folder / "browser")
    try:
        for number in (1, 4):
            page, logs = folder / f"run{number}.html", folder / f"run{number}"
            record("input_pipeline.py", "--run", number, "--logdir", logs)
            report.make([logs], {"html": page})
            browser.open(page, width=WIDTH)
            if number == 1:
                take(browser, "report_run1.png", *REPORT)
            browser.evaluate(ONE_STEP)
            take(browser, f"timeline_run{number}.png", *TIMELINE)
    finally:
        browser.close()


def take(browser: Any, name: str, first: str, last: str) -> None:
    """A picture of a part of the page: the head of it, above, names this machine."""
    browser.drawn()
    place = "getBoundingClientRect()"
    top = browser.evaluate(f"{first}.{place}.top + scrollY") - 12
    bottom = browser.evaluate(f"{last}.{place}.bottom + scrollY") + 12
    clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top, "scale": 1}
    shot = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"])))
    info = PngInfo()
    info.add_text("Description", fingerprint())
    picture.save(IMAGES / name, optimize=True, pnginfo=info)
    print(f"wrote {(IMAGES / name).relative_to(ROOT)}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (make_sample if "--sample" in sys.argv else make_pictures)(Path(folder))


if __name__ == "__main__":
    main()
