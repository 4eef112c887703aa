"""One self-contained HTML page: the template, its style and its scripts, and the data in it."""

from __future__ import annotations

import html
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfworkshop.report.compare import Comparison
from tfworkshop.report.figures import COLOURS, GAP_COLOURS
from tfworkshop.report.gaps import ACTIVITIES
from tfworkshop.report.profile import LABELS, Profile
from tfworkshop.stages import ROOT, STAGES

FOLDER = Path(__file__).parent / "assets"
# In this order: constants come before their use.
SCRIPTS = ("charts", "tables", "devices", "timeline_colours", "timeline_paint", "timeline", "page")
MOST_ROWS = 100  # of a table; --json has them all


def asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever the names in it are."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def for_page(profile: Profile, timeline: dict) -> dict:
    made = asdict(profile)
    made["timeline"] = timeline
    by_side = [[op for op in made["operations"] if op["where"] == s] for s in ("device", "host")]
    made["operations"] = [op for side in by_side for op in side[:MOST_ROWS]]
    for key in ("kernels", "layers", "host_steps"):
        made[key] = made[key][:MOST_ROWS]
    return made


def stages(beside: Path | None) -> dict[str, dict[str, str]]:
    """The stages in words; with a link where the page lies inside the repository."""
    inside = beside is not None and ROOT in beside.resolve().parents
    return {
        stage.folder: {
            "words": stage.change,
            "link": os.path.relpath(ROOT / stage.folder, beside.resolve().parent) if inside else "",
        }
        for stage in STAGES
    }


def page(
    profiles: list[Profile],
    timelines: list[dict],
    comparison: Comparison | None,
    beside: Path | None = None,
) -> str:
    """The whole page; beside is where it will lie."""
    compared = asdict(comparison) if comparison else None
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
