"""One self-contained HTML page: the template, its style and its scripts, and the data in it."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from tfworkshop.report.compare import Comparison
from tfworkshop.report.figures import COLOURS, GAP_COLOURS
from tfworkshop.report.gaps import ACTIVITIES
from tfworkshop.report.profile import LABELS, Profile
from tfworkshop.report.verdict import ceilings
from tfworkshop.stages import ROOT, STAGES

FOLDER = Path(__file__).parent / "assets"
# In this order: constants come before their use.
SCRIPTS = ("charts", "tables", "devices", "timeline_colours", "timeline_paint", "timeline", "page")
MOST_ROWS = 100  # of a table; --json has them all


def asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever the names in it are."""
    text = msgspec.json.encode(value).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def for_page(profile: Profile, timeline: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(profile)
    data["timeline"] = timeline
    data["ceilings"] = msgspec.to_builtins(ceilings(profile))
    by_side = [[op for op in data["operations"] if op["where"] == s] for s in ("device", "host")]
    data["operations"] = [op for side in by_side for op in side[:MOST_ROWS]]
    for key in ("kernels", "copies", "layers", "host_steps"):
        data[key] = data[key][:MOST_ROWS]
    return data


def stages(beside: Path) -> dict[str, dict[str, str]]:
    """The stages in words; with a link where the page lies inside the repository."""
    result = {}
    for stage in STAGES:
        link = ""
        if ROOT in beside.resolve().parents:
            link = os.path.relpath(ROOT / stage.folder, beside.resolve().parent)
        result[stage.folder] = {"words": stage.change, "link": link}
    return result


def page(
    profiles: list[Profile],
    timelines: list[dict[str, Any]],
    comparison: Comparison | None,
    beside: Path,
) -> str:
    """The whole page; beside is where it will lie."""
    compared = msgspec.to_builtins(comparison) if comparison else None
    if compared:
        for key in ("operations", "kernels"):
            compared[key] = compared[key][:MOST_ROWS]
    data = {
        "profiles": [for_page(*pair) for pair in zip(profiles, timelines)],
        "comparison": compared,
        "labels": {**LABELS, **{f"gap_{key}": title for key, title in ACTIVITIES.items()}},
        "colours": {**COLOURS, **{f"gap_{key}": code for key, code in GAP_COLOURS.items()}},
        "parts": list(LABELS),
        "stages": stages(beside),
    }
    parts = {
        "title": html.escape(", ".join(profile.run for profile in profiles)),
        "style": asset("page.css"),
        "script": "\n".join(asset(f"{name}.js") for name in SCRIPTS),
        "data": safe_json(data),
    }
    return re.sub(r"@@(\w+)@@", lambda found: parts[found[1]], asset("page.html"))
