"""Test in a real browser the pages of a night, which ``rackproof.jobs.validate.pages`` makes.

A night is one run of validate.yml on the fleet. Its page shows every node by rack, and a bad node has a page
with its findings. The tests show that the pages fit the window, have enough contrast, load quickly for a
thousand nodes, and make bad nodes stand out. Some texts of nodes contain HTML, which must be shown as text.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rackproof.core.records import Verdict
from rackproof.jobs.validate.pages import night_page, node_page
from rackproof.nodes.health_subjects import HealthFinding
from rackproof.report.charts import Chart, Line, draw
from rackproof.store.night_store import Hold, NightReason, NightRecord, NodeNight, SlurmState
from tests.e2e.browser.devtools import Page

pytestmark = pytest.mark.browser
ENDED = datetime(2026, 11, 22, 4, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script> & a_word_without_any_blank_that_goes_on_and_on_" + "x" * 120


def finding(node: str, text: str = "XID 79: GPU has fallen off the bus") -> HealthFinding:
    return HealthFinding(
        node=node,
        code="xid_79",
        part="gpu",
        name="GPU-8955790d-5861-f333-ed55-6e634b60b6de",
        place="GPU 2, 00000018:06:00.0, module 4",
        verdict=Verdict.FAIL,
        action="reboot",
        confidence="likely",
        evidence=text,
    )


def made_night(count: int, ago: int = 0) -> NightRecord:
    """Return the record of a night that ended ``ago`` days before ``ENDED``. Its racks have 18 nodes.

    Of every 40 nodes, the eighth fails and the thirteenth is unproven. The first bad node has hostile text.
    """
    nodes = []
    for number in range(count):
        name = f"gb300-r{number // 18 + 1:02d}-n{number % 18 + 1:02d}"
        node = NodeNight(node=name, sku="gb300", rack=f"rack-{number // 18 + 1:02d}", verdict=Verdict.PASS)
        if number % 40 == 7:
            node = node.model_copy(
                update={
                    "verdict": Verdict.FAIL,
                    "findings": (finding(name, HOSTILE if number == 7 else "XID 79"), finding(name)),
                    "reasons": (
                        NightReason(
                            check="floor",
                            verdict=Verdict.FAIL,
                            metric="gemm_best dtype=bf16",
                            part="GPU-8955790d-5861-f333-ed55-6e634b60b6de (slot 2)",
                            text="700 TFLOP/s is 12 % below 793 TFLOP/s",
                            deviation=-0.12,
                        ),
                    ),
                    "slurm": SlurmState(known=True, state="IDLE+DRAIN", drained_by="ours", reason="xid_79"),
                    "hold": Hold(since="20261121T040000Z-health-000000", codes=("xid_79",)),
                    "why": "stays drained: xid_79 GPU 2",
                    "did": "drained",
                }
            )
        elif number % 40 == 12:
            node = node.model_copy(
                update={"verdict": Verdict.UNPROVEN, "unreached": "no snapshot of it: timed out"}
            )
        nodes.append(node)
    ended = ENDED - timedelta(days=ago)
    return NightRecord(
        night_id=f"{ended:%Y%m%dT%H%M%SZ}-health-000000",
        started=ended,
        ended=ended,
        verdict=Verdict.FAIL,
        nodes=tuple(nodes),
        remarks=("the history cannot be queried: " + HOSTILE,),
        acts=("drain",),
        closed=True,
    )


@pytest.fixture(scope="module")
def night_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the page of a night with 36 nodes, and that of its failed node."""
    folder = tmp_path_factory.mktemp("night")
    night = made_night(36)
    bad = night.nodes[7]
    (folder / "nodes").mkdir()
    links = {one.node: f"nodes/{one.node}.html" for one in night.nodes}
    (folder / "index.html").write_text(night_page(night, [f"{bad.node}: pass → fail: {HOSTILE}"] * 5, links))
    ticks = tuple(float(-ago) for ago in range(14, -1, -1))
    lines = tuple(Line(f"GPU {slot}", ticks, tuple(790 + slot + x / 3 for x in ticks)) for slot in range(4))
    drawn = draw(Chart("gemm best", "night (0 is this one)", "TFLOP/s", lines, markers=True), "c0")
    nights = [(one, one.nodes[7]) for one in (made_night(36, ago) for ago in range(5))]
    page = folder / f"nodes/{bad.node}.html"
    page.write_text(node_page(night, bad, None, nights, [drawn]))
    return {"night": folder / "index.html", "node": page}


@pytest.fixture(params=[(1280, False), (400, False), (1280, True)], ids=str)
def window(request: pytest.FixtureRequest, browser: Page) -> Page:
    """Return the browser at one width and colour scheme, without earlier problems and requests."""
    width, dark = request.param
    browser.size(width)
    browser.media(dark=dark)
    browser.problems.clear()
    browser.requests.clear()
    return browser


@pytest.mark.parametrize("kind", ["night", "node"])
def test_a_page_fits_and_can_be_read(kind: str, window: Page, night_pages: dict[str, Path]) -> None:
    window.open(night_pages[kind])
    assert window.problems == []
    assert len([url for url in window.requests if not url.startswith("data:")]) == 1
    assert window.evaluate("document.documentElement.scrollWidth") == window.evaluate("innerWidth")
    outside = window.evaluate(
        "[...document.querySelectorAll('body *')]"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1"
        " && !e.closest('.scroll, .skip, thead, svg')).map(e => e.outerHTML.slice(0, 200))"
    )
    assert outside == []
    # There is some space between the last card and the footer's text.
    footer = "getComputedStyle(document.querySelector('footer'))"
    assert window.evaluate(f"parseFloat({footer}.paddingTop)") >= 8
    # WCAG 2, level AA, requires a contrast of at least 4.5 for text.
    contrasts = window.evaluate(Path(__file__).with_name("contrast.js").read_text())
    assert len(contrasts) > 20
    assert [one for one in contrasts if one["ratio"] < 4.5] == []
    assert window.evaluate("document.querySelectorAll('script, iframe, object, img, form').length") == 0


def test_a_bad_node_stands_out_and_leads_to_its_page(browser: Page, night_pages: dict[str, Path]) -> None:
    browser.size(1280)
    browser.media()
    browser.open(night_pages["night"])
    cells = browser.evaluate(
        "[...document.querySelectorAll('.rack li')].map(e => [e.innerText.trim(),"
        " getComputedStyle(e).backgroundColor, e.querySelector('a').getAttribute('href')])"
    )
    assert len(cells) == 36
    colours = {cell[1] for cell in cells}
    assert len(colours) == 3
    bad = cells[7]
    assert bad[0].endswith("n08")
    assert (night_pages["night"].parent / bad[2]) == night_pages["node"]
    assert [cell[1] for cell in cells].count(bad[1]) == 1
    top = browser.evaluate("[...document.querySelectorAll('h2')].map(e => e.innerText)")
    assert top[0] == "Changed since the night before"


def test_a_thousand_nodes_open_within_a_second(browser: Page, tmp_path: Path) -> None:
    night = made_night(1000)
    page = tmp_path / "index.html"
    links = {one.node: f"nodes/{one.node}.html" for one in night.nodes if one.verdict is not Verdict.PASS}
    page.write_text(night_page(night, ["one", "two"], links))
    browser.size(1280)
    begin = time.monotonic()
    browser.open(page)
    loaded = browser.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
    # The time is in milliseconds by the browser's own clock, because the protocol is slow on a busy machine.
    assert 0 < loaded < 1000, time.monotonic() - begin
    assert browser.evaluate("document.querySelectorAll('.rack li').length") == 1000
