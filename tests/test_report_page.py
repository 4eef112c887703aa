"""The report's page in a real browser, with the network off."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from test_report import GPU_PROFILE, needs_gpu_profile, only_file
from xspaces import Made

from tfworkshop.report import command as report
from tfworkshop.report import trace
from tfworkshop.report.figures import ms
from tfworkshop.report.page import page as page_of
from tfworkshop.report.page import stages
from tfworkshop.stages import ROOT

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: apt-get install chromium"
)
HOSTILE = [
    "<script>document.title = 'owned'</script>",
    "</script><script>document.title = 'owned'</script>",
    '"><img src=x onerror="document.title = \'owned\'">',
    "snow ☃ and \u2028 lines \u202e backwards",
    "@@data@@ ${1} &lt;b&gt;",
    "long" * 2000,
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
    links = browser.evaluate(
        "[...document.querySelectorAll('.contents a')].map(a => [a.textContent,"
        " document.querySelector(a.getAttribute('href')).querySelector('h2').textContent])"
    )
    assert len(links) >= 5 and all(link == heading for link, heading in links)
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
    (gain, *_), (rest, *_) = sizes(browser, ".gain", "width"), sizes(browser, ".rest", "width")
    compute = data["causes"][0]
    assert gain / rest == pytest.approx(1 - compute["gain_ms"] / compute["total_ms"], abs=0.01)


def test_inferred_steps_look_inferred(browser: Browser, tmp_path: Path) -> None:
    made = Made()
    for i in range(8):
        made.host("python", "step", 10 * i, 6, tf_function_call="notTraced", tracing_count=1)
        made.host("tf_Compute/1", "a/MatMul:MatMul", 10 * i, 6)
    page, _ = write_page(tmp_path, made.write(tmp_path))
    browser.open(page)
    assert "inferred" in texts(browser, ".figures dt")[0]
    outline = "getComputedStyle(document.querySelector('.inferred > .stack')).outlineStyle"
    assert browser.evaluate(outline) == "dashed"
    healthy(browser, page)


@pytest.mark.parametrize("width", [420, 1280])
def test_nothing_sticks_out(browser: Browser, made: tuple[Path, dict], width: int) -> None:
    browser.open(made[0], width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


CONTRASTS = """(() => {
  const level = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((c) => {
      const v = c / 255;
      return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = level(getComputedStyle(document.body).backgroundColor);
  const found = {};
  for (const e of document.querySelectorAll("main *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.offsetHeight) continue;
    let seen = 1;
    for (let up = e; up; up = up.parentElement) seen *= getComputedStyle(up).opacity;
    const ink = level(getComputedStyle(e).color) * seen + paper * (1 - seen);
    const [low, high] = [ink, paper].sort((a, b) => a - b);
    found[e.tagName + "." + e.className] = (high + 0.05) / (low + 0.05);
  }
  return found;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser: Browser, made: tuple[Path, dict], scheme: str) -> None:
    """A contrast of 4.5 to 1, axis labels and events on the timeline included."""
    browser.open(made[0], scheme=scheme)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(paper[4:].split(",")[0]) > 128) == (scheme == "light")
    found = browser.evaluate(CONTRASTS)
    assert len(found) > 20
    assert {name: ratio for name, ratio in found.items() if ratio < 4.5} == {}
    ratios = browser.evaluate(
        "Object.values(data.colours).flatMap((c) => ['a', 'b', 'c', 'd', 'e'].map((n) => {"
        " const s = shade(c, n), [low, high] = [luminance(s), luminance(textOn(s))]"
        ".sort((a, b) => a - b); return (high + 0.05) / (low + 0.05); }))"
    )
    assert min(ratios) >= 4.5


def test_stages_are_links_inside_the_repository(tmp_path: Path) -> None:
    assert stages(ROOT / "results" / "page.html")["03_xla"]["link"] == "../03_xla"
    assert stages(tmp_path / "page.html")["03_xla"]["link"] == ""


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
    for key, change in (("+", -1), ("-", 1), ("w", -1), ("s", 1)):
        before = view(browser)
        browser.key(key)
        now = view(browser)
        grown = (now["until"] - now["from"]) - (before["until"] - before["from"])
        assert grown * change > 0, key
    for key, change in (("ArrowRight", 1), ("a", -1), ("d", 1), ("ArrowLeft", -1)):
        before = view(browser)
        browser.key(key)
        assert (view(browser)["from"] - before["from"]) * change > 0, key
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
    starts = []
    for _ in range(2):
        browser.evaluate("document.querySelectorAll('.tools button')[4].click()")  # the next step
        browser.drawn()
        starts.append(view(browser)["from"])
    assert starts[1] > starts[0]
    browser.evaluate(
        "(() => { const e = document.querySelector('.tools input'); e.value = 'ADAM/sub_1';"
        " e.dispatchEvent(new Event('input')); })()"
    )
    browser.drawn()
    found = texts(browser, ".tools span")[0]
    assert found.endswith(" found") and int(found.split()[0].replace(",", "")) >= 10


def test_two_hundred_thousand_events(browser: Browser, tmp_path: Path) -> None:
    """Drawing stays under a tenth of a second, all in view or zoomed in."""
    made = Made()
    plane = made.plane("/host:CPU")
    for i in range(997):
        plane.event_metadata[i].name = f"op {i}"
    lines = [plane.lines.add(name=f"thread {i}") for i in range(20)]
    for i in range(200_000):
        depth, place = i // 20 % 3, i // 60
        lines[i % 20].events.add(
            metadata_id=i % 997,
            offset_ps=place * 1_000_000_000 + depth * 1_000_000,
            duration_ps=900_000_000 - depth * 300_000_000 - (i % 7) * 1_000_000,
        )
    page, _ = write_page(tmp_path, made.write(tmp_path))
    browser.open(page)
    assert "200,000 events" in texts(browser, ".timeline p")[0]
    point = focus(browser)
    times = []
    for delta in (-240, -240, -240, 240, 240, -240):
        browser.wheel(*point, delta)
        browser.drag(*point, -80)
        times.append(view(browser)["paint"])
    assert view(browser)["drawn"] > 1000
    assert statistics.median(times) < 100
    healthy(browser, page)


# --- other profiles ---


@needs_gpu_profile
def test_the_gpu_profile_opens_and_prints(browser: Browser, tmp_path: Path) -> None:
    page, data = write_page(tmp_path, GPU_PROFILE)
    browser.open(page, scheme="dark")
    assert texts(browser, ".kernels .name span")[0] == data["kernels"][0]["short"]
    assert len(texts(browser, ".curve")) == len(data["memory"]["allocators"])
    assert "30.5 %" in " ".join(texts(browser, ".figures dd"))
    assert view(browser)["drawn"] > 100
    browser.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    healthy(browser, page)
    browser.open(page, width=420)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 420


def test_two_profiles(browser: Browser, profiled: Path, tmp_path: Path) -> None:
    page, data = write_page(tmp_path, profiled, profiled)
    browser.open(page)
    assert texts(browser, "h1")[0].replace("\u00a0", " ") == data["comparison"]["sentence"]
    assert len(texts(browser, ".row .stack")) == len(texts(browser, "canvas")) == 2
    rows = texts(browser, "section.operations tbody tr")
    assert len(rows) == min(100, len(data["comparison"]["operations"]))
    healthy(browser, page)


def test_hostile_names_are_text(browser: Browser, profiled: Path, tmp_path: Path) -> None:
    """A real profile whose host, threads, steps and events are named to do harm."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(only_file(profiled).read_bytes())
    for plane in space.planes:
        for i, metadata in enumerate(plane.event_metadata.values()):
            if metadata.name == "train" or i % 5 == 0:
                metadata.name = HOSTILE[i % len(HOSTILE)]
        for i, line in enumerate(plane.lines):
            line.name = HOSTILE[i % len(HOSTILE)]
    space.hostnames[:] = [HOSTILE[0]]
    file = tmp_path / "hostile.xplane.pb"
    file.write_bytes(space.SerializeToString())
    found, hosts = report.load(file)
    for name, op in zip(HOSTILE, found.operations):
        op.name = op.type = name
    found.run = found.verdict["sentence"] = HOSTILE[1]
    page = tmp_path / "page.html"
    page.write_text(page_of([found], [trace.timeline(hosts)], None), encoding="utf-8")
    browser.open(page)
    titles = browser.evaluate("[...document.querySelectorAll('.name span')].map(e => e.title)")
    assert {*HOSTILE} <= {*titles}
    assert HOSTILE[0] in texts(browser, "main p")[0]  # the host
    assert texts(browser, "h1") == texts(browser, "title") == [HOSTILE[1]]
    assert browser.evaluate("document.querySelectorAll('main script, main img').length") == 0
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1280
    focus(browser)
    healthy(browser, page)
