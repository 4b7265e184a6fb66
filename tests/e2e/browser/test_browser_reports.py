"""Test the HTML reports of ``rackproof.report`` in a real browser.

A report is one file without scripts, and must need no network. The tests open a report of each kind at
several widths and colour schemes. They show that the page loads without errors and requests nothing else,
that tables and charts fit the window, that text is large and has enough contrast, and that charts are drawn.
Text from a hostile log must be shown as text.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.browser.devtools import Page

pytestmark = pytest.mark.browser

KINDS = ("healthy", "hostile", "rack", "sweep", "comparison", "six")
# The number of charts in a report of each kind.
CHARTS = {"healthy": 3, "hostile": 2, "rack": 1, "sweep": 6, "comparison": 1, "six": 0}


@pytest.fixture(params=[(1280, False), (1400, False), (400, False), (1280, True)], ids=str)
def window(request: pytest.FixtureRequest, browser: Page) -> Page:
    """Return the browser at one width and colour scheme, without earlier problems and requests."""
    width, dark = request.param
    browser.size(width)
    browser.media(dark=dark)
    browser.problems.clear()
    browser.requests.clear()
    return browser


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_loads_without_a_complaint_and_asks_for_nothing(
    kind: str, window: Page, pages: dict[str, Path]
) -> None:
    window.open(pages[kind])
    assert window.problems == []
    assert [url for url in window.requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in window.requests if url.startswith("file:")]) == 1
    assert window.evaluate("document.compatMode") == "CSS1Compat"


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_not_wider_than_the_window(kind: str, window: Page, pages: dict[str, Path]) -> None:
    window.open(pages[kind])
    width = window.evaluate("innerWidth")
    assert window.evaluate("document.documentElement.scrollWidth") == width
    # Nothing sticks out, unless it lies in a container that scrolls by itself.
    outside = window.evaluate(
        "[...document.querySelectorAll('body *')]"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1"
        " && !e.closest('.scroll, .skip, thead, svg')).map(e => e.outerHTML.slice(0, 200))"
    )
    assert outside == []


@pytest.mark.parametrize("width", [800, 1024, 1279, 1400])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_is_wider_than_its_box_scrolls_to_its_end(
    kind: str, width: int, browser: Page, pages: dict[str, Path]
) -> None:
    browser.size(width)
    browser.open(pages[kind])
    cut = browser.evaluate(
        "[...document.querySelectorAll('table')].filter(t => {"
        " const box = t.parentElement; box.scrollLeft = 1e6;"
        " const right = box.getBoundingClientRect().right;"
        " return [...t.rows].some(r => r.lastElementChild.getBoundingClientRect().right > right + 1)"
        "}).map(t => t.outerHTML.slice(0, 200))"
    )
    assert cut == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("kind", KINDS)
def test_no_table_has_to_be_scrolled_in_a_usual_window(
    kind: str, browser: Page, pages: dict[str, Path]
) -> None:
    browser.size(1400)
    browser.open(pages[kind])
    wide = browser.evaluate(
        "[...document.querySelectorAll('table')]"
        ".filter(t => t.parentElement.scrollWidth > t.parentElement.clientWidth + 1)"
        ".map(t => t.outerHTML.slice(0, 300))"
    )
    assert wide == []


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_large_enough_to_read(kind: str, window: Page, pages: dict[str, Path]) -> None:
    window.open(pages[kind])
    smallest = window.evaluate(
        "Math.min(...[...document.querySelectorAll('figure text')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().d))"
    )
    # Both limits are in CSS pixels: the first one for text in charts, the second one for all other text.
    if CHARTS[kind]:
        assert smallest >= 8.5
    small = window.evaluate(
        "Math.min(...[...document.querySelectorAll('main p, main td, main dd, main li, main th')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert small >= 12


@pytest.mark.parametrize("kind", KINDS)
def test_charts_are_drawn(kind: str, window: Page, pages: dict[str, Path], tmp_path: Path) -> None:
    window.open(pages[kind])
    shot = Image.open(window.screenshot(tmp_path / "page.png")).convert("RGB")
    boxes = window.evaluate(
        "[...document.querySelectorAll('figure > svg')].map(e => {const b = e.getBoundingClientRect();"
        " return [b.left, b.top + scrollY, b.right, b.bottom + scrollY]})"
    )
    assert len(boxes) == CHARTS[kind]
    lines = window.evaluate(
        "[...document.querySelectorAll('figure > svg')].map(s => Math.max(...["
        "...s.querySelectorAll('[style*=\"var(--c0)\"]')]"
        ".map(e => {const b = e.getBoundingClientRect(); return b.width + b.height})))"
    )
    for box, line in zip(boxes, lines, strict=True):
        left, top, right, bottom = map(int, box)
        assert right - left >= 300
        assert bottom - top >= 120
        colours = shot.crop((left, top, right, bottom)).getcolors(1 << 24)
        assert colours is not None
        # The background has one colour. Lines and text take between 0.5 % and half of the chart.
        most = max(count for count, _ in colours)
        assert 0.005 < 1 - most / sum(count for count, _ in colours) < 0.5
        # The longest line of the first colour, in pixels. These two kinds draw short intervals in the place
        # of curves across the chart.
        assert line > (4 if kind in ("hostile", "comparison") else 100)


@pytest.mark.parametrize("kind", KINDS)
def test_text_and_background_differ_enough(kind: str, window: Page, pages: dict[str, Path]) -> None:
    window.open(pages[kind])
    # WCAG 2, level AA, requires a contrast of at least 4.5 for text.
    contrasts = window.evaluate(Path(__file__).with_name("contrast.js").read_text())
    assert len(contrasts) > 20
    assert [one for one in contrasts if one["ratio"] < 4.5] == []


def test_dark_mode_is_dark(browser: Page, pages: dict[str, Path]) -> None:
    brightness = []
    for dark in (False, True):
        browser.size(1280)
        browser.media(dark=dark)
        browser.open(pages["healthy"])
        colour = browser.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor")
        brightness.append(sum(int(part) for part in colour[4:-1].split(",")))
    # The sum of red, green and blue is 0 for black and 765 for white.
    assert brightness[0] > 700 > 150 > brightness[1]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_log_became_markup(kind: str, browser: Page, pages: dict[str, Path]) -> None:
    browser.size(1280)
    browser.open(pages[kind])
    assert browser.evaluate("document.querySelectorAll('script, iframe, object, img, form').length") == 0
    if kind == "hostile":
        assert "<script>alert(1)</script>" in browser.evaluate("document.querySelector('h1').textContent")


def test_the_page_refuses_scripts(browser: Page, pages: dict[str, Path]) -> None:
    """The page's content security policy stops a script even if it was not escaped."""
    browser.size(1280)
    browser.open(pages["healthy"])
    browser.problems.clear()
    browser.evaluate(
        "{const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        " document.body.append(s)}"
    )
    assert browser.evaluate("window.ran") is None
    assert any("Content Security Policy" in problem for problem in browser.problems)


def test_a_report_prints_in_black_on_white(browser: Page, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.size(1000)
    browser.media(dark=True, media="print")
    browser.open(pages["healthy"])
    shot = Image.open(browser.screenshot(tmp_path / "print.png")).convert("L")
    assert shot.getpixel((2, 2)) == 255
    assert browser.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    assert browser.pdf().startswith(b"%PDF")


def test_a_screenshot_sees_what_is_there(browser: Page, tmp_path: Path) -> None:
    """The methods of these tests notice a page that breaks its policy, and one that is too wide."""
    bad = tmp_path / "bad.html"
    dot = io.BytesIO()
    Image.new("RGB", (1, 1)).save(dot, "PNG")
    source = base64.b64encode(dot.getvalue()).decode()
    bad.write_text(
        "<!doctype html><meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
        f"<div style='width:3000px'>x</div><script>1</script><img src='data:image/png;base64,{source}'>"
    )
    browser.size(400)
    browser.media()
    browser.problems.clear()
    browser.open(bad)
    assert browser.problems
    browser.problems.clear()
    wide = tmp_path / "wide.html"
    wide.write_text(
        "<!doctype html><meta name=viewport content='width=device-width'><p style='width:3000px'>x"
    )
    browser.open(wide)
    assert browser.evaluate("document.documentElement.scrollWidth") > 400
