"""The report's page in a real browser, with the network off."""

from __future__ import annotations

import base64
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from test_report import GPU_PROFILE, needs_gpu_profile, optimizer_operation
from xspaces import Made

from tfworkshop.report import command as report
from tfworkshop.report.figures import ms

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]
HOSTILE = [
    "<script>document.title = 'owned'</script>",
    "</script><script>document.title = 'owned'</script>",
    '"><img src=x onerror="document.title = \'owned\'">',
    "snow ☃ and \u2028 lines \u202e backwards",
    "@@data@@ ${1} &lt;b&gt;",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = Browser(tmp_path_factory.mktemp("chromium"))
    yield chromium
    chromium.close()


@pytest.fixture(scope="module")
def made(profiled: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The page of stage 04's profile, and its figures."""
    return write_page(tmp_path_factory.mktemp("page"), profiled)


def write_page(folder: Path, *paths: Path) -> tuple[Path, dict]:
    files = {"html": folder / "page.html", "json": folder / "report.json"}
    assert report.make(list(paths), files) == 0
    return files["html"], json.loads(files["json"].read_text())


def texts(browser: Browser, selector: str) -> list[str]:
    return browser.evaluate(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
    )


def healthy(browser: Browser, page: Path) -> None:
    assert browser.trouble() == []
    assert browser.requests() == [page.resolve().as_uri()]


# --- what is on it ---


def test_the_page_says_what_the_json_says(browser: Browser, made: tuple[Path, dict]) -> None:
    page, data = made
    browser.open(page)
    assert texts(browser, "h1")[0].replace("\u00a0", " ") == data["verdict"]["sentence"]
    above = " ".join(texts(browser, ".evidence, .next")).replace("\u00a0", " ")
    for key in ("evidence", "ceiling", "next"):
        assert data["verdict"][key] in above
    steps = data["steps"]
    assert texts(browser, ".figures dd")[0].startswith(f"{ms(steps['average_ms'])} ms")
    legend = " ".join(texts(browser, ".legend li"))
    for value in filter(None, steps["split"].values()):
        assert f"{ms(value)} ms" in legend
    shown = "[...document.querySelectorAll('.operations tbody tr')].filter(r => r.offsetHeight)"
    rows = browser.evaluate(f"{shown}.map(row => [...row.children].map(c => c.textContent))")
    assert len(rows) == 10
    for (name, kind, mode, count, self_ms, share, _), op in zip(rows, data["operations"]):
        assert name.lstrip("…\u2060") in op["name"]
        assert [kind, mode, count] == [op["type"], op["mode"], str(op["count"])]
        assert [self_ms, share] == [ms(op["self_ms"]), f"{100 * op['share']:.1f} %"]
    browser.evaluate("document.querySelector('.operations .showall').click()")
    assert browser.evaluate(f"{shown}.length") == min(100, len(data["operations"]))
    assert set(data["missing"]) == set(texts(browser, ".missing li"))
    healthy(browser, page)


def sizes(browser: Browser, selector: str, side: str) -> list[float]:
    every = f"[...document.querySelectorAll({json.dumps(selector)})]"
    return browser.evaluate(f"{every}.map(e => e.getBoundingClientRect().{side})")


def test_the_bars_are_as_long_as_the_figures(browser: Browser, made: tuple[Path, dict]) -> None:
    page, data = made
    browser.open(page)
    heights = sizes(browser, ".column", "height")
    times = [step["total_ms"] for step in data["steps"]["per_step"]]
    assert [h / heights[0] for h in heights] == pytest.approx([t / times[0] for t in times], 0.01)
    widths = sizes(browser, ".operations .bars div", "width")[:10]
    longest = [op["self_ms"] / data["operations"][0]["self_ms"] for op in data["operations"][:10]]
    assert [w / widths[0] for w in widths] == pytest.approx(longest, abs=0.01)


@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), (1280, "light")])
def test_nothing_sticks_out(
    browser: Browser, made: tuple[Path, dict], width: int, scheme: str
) -> None:
    browser.open(made[0], width=width, scheme=scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(paper[4:].split(",")[0]) > 128) == (scheme == "light")


# Colour of every text on the page, with its opacity.


# --- the timeline ---


def view(browser: Browser) -> dict[str, float]:
    found = browser.evaluate("({...document.querySelector('.scroll').dataset})")
    return {name: float(value) for name, value in found.items()}


def focus(browser: Browser) -> tuple[float, float]:
    """Bring the timeline into view and click into its middle: before that the wheel scrolls."""
    left, top, width = browser.evaluate(
        "(() => { const e = document.querySelector('.scroll'); e.scrollIntoView();"
        " const box = e.getBoundingClientRect(); return [box.left, box.top, box.width]; })()"
    )
    point = left + 200 + (width - 200) / 2, top + 60
    before = view(browser)["from"]
    browser.wheel(*point, -200)
    assert view(browser)["from"] == before
    browser.click(*point)
    return point


def test_zoom_and_pan(browser: Browser, made: tuple[Path, dict]) -> None:
    browser.open(made[0])
    start = view(browser)
    point = focus(browser)
    browser.wheel(*point, -240)
    closer = view(browser)
    middle = (start["from"] + start["until"]) / 2
    assert start["from"] < closer["from"] < middle < closer["until"] < start["until"]
    browser.drag(*point, 150)
    moved = view(browser)
    length = closer["until"] - closer["from"]
    assert moved["until"] - moved["from"] == pytest.approx(length, rel=0.001)
    assert moved["from"] < closer["from"] - 0.1 * length
    keys = (("+", 1), ("-", -1), ("w", 1), ("s", -1), ("ArrowRight", 1), ("a", -1), ("d", 1))
    for key, change in keys:  # closer and to the right, the view begins later
        before = view(browser)["from"]
        browser.key(key)
        assert (view(browser)["from"] - before) * change > 0, key
    browser.key("0")
    assert {**view(browser), "paint": 0} == {**start, "paint": 0}
    healthy(browser, made[0])


def test_what_the_pointer_is_on_and_finding(browser: Browser, made: tuple[Path, dict]) -> None:
    browser.open(made[0])
    left, _ = focus(browser)
    row = browser.evaluate("document.querySelector('canvas').getBoundingClientRect().top") + 34 + 30
    browser.mouse("mouseMoved", left, row + 15)
    browser.drawn()
    tip = texts(browser, ".tip")[0]
    assert tip.startswith("train ") and "python" in tip and " ms" in tip
    browser.click(left, row + 15, count=2)  # zooms to that step
    seen = view(browser)
    step = next(s for s in made[1]["steps"]["per_step"] if tip.startswith(s["name"]))
    assert (seen["until"] - seen["from"]) / 1e6 == pytest.approx(1.2 * step["total_ms"], rel=0.02)
    name = optimizer_operation(made[1])["name"].upper()
    browser.evaluate(
        f"(() => {{ const e = document.querySelector('.tools input'); e.value = {name!r};"
        " e.dispatchEvent(new Event('input')); })()"
    )
    browser.drawn()
    found = texts(browser, ".tools span")[0]
    assert found.endswith(" found") and int(found.split()[0].replace(",", "")) >= 10


def test_two_hundred_thousand_events(browser: Browser, tmp_path: Path) -> None:
    """Drawing stays under a tenth of a second, all in view or zoomed in."""
    page, _ = write_page(tmp_path, Made().many(200_000).write(tmp_path))
    browser.open(page)
    assert "200,000 events" in texts(browser, ".timeline p")[0]
    point = focus(browser)
    times = []
    for delta in (-240, -240, -240, 240, 240, -240):
        browser.wheel(*point, delta)
        browser.drag(*point, -80)
        times.append(view(browser)["paint"])
    assert statistics.median(times) < 100
    healthy(browser, page)


# --- other profiles ---


@needs_gpu_profile
def test_the_gpu_profile_opens_and_prints(browser: Browser, tmp_path: Path) -> None:
    page, data = write_page(tmp_path, GPU_PROFILE)
    browser.open(page, width=420, scheme="dark")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 420
    assert texts(browser, ".kernels .name span")[0] == data["kernels"][0]["short"]
    assert len(texts(browser, ".curve")) == len(data["memory"])
    assert "30.5 %" in " ".join(texts(browser, ".figures dd"))
    assert view(browser)["drawn"] > 100
    printed = browser.call("Page.printToPDF")["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")
    healthy(browser, page)


def test_two_profiles(browser: Browser, profiled: Path, tmp_path: Path) -> None:
    page, data = write_page(tmp_path, profiled, profiled)
    browser.open(page)
    assert texts(browser, "h1")[0].replace("\u00a0", " ") == data["comparison"]["sentence"]
    assert len(texts(browser, ".row .stack")) == len(texts(browser, "canvas")) == 2
    rows = texts(browser, "section.operations tbody tr")
    assert len(rows) == min(100, len(data["comparison"]["operations"]))
    healthy(browser, page)


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    """Hosts, threads, steps and operations named to do harm."""
    made = Made(HOSTILE[0])
    for i, name in enumerate(HOSTILE):
        made.step(i, 10 * i, 9, name=HOSTILE[1])
        made.host(name, name, 10 * i, 9)
        made.kernel("k", 10 * i, 9, tf_op=name)
    page, _ = write_page(tmp_path, made.write(tmp_path))
    browser.open(page)
    titles = browser.evaluate("[...document.querySelectorAll('.name span')].map(e => e.title)")
    assert HOSTILE[0] in " ".join(titles) and HOSTILE[0] in texts(browser, "main p")[0]
    assert texts(browser, "title") == ["made"]
    assert browser.evaluate("document.querySelectorAll('main script, main img').length") == 0
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1280
    focus(browser)
    healthy(browser, page)
