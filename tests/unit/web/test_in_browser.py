"""The page in a real browser, with a board that the test fills: what a person sees, on any screen, of any names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from stream_metrics.core.fold import Fold
from stream_metrics.core.settings import FoldSettings
from stream_metrics.testing import MemoryLog, close, sample
from support.browser import Browser, Keys, chromium
from support.page import Served, served
from support.results import result
from support.waiting import wait_until

PREFIX = "stream_metrics."
LETTER = {"reason": "undecodable", "message": "Expected `int`", "topic": "in", "partition": "0", "offset": "7"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture
def page() -> Iterator[Served]:
    with served() as made:
        yield made


def steps(run: str = "run-a", count: int = 60, **changes: Any) -> list[bytes]:
    """Returns results whose two rewards differ, the 20th corrected and the 30th incomplete."""
    made = []
    for step in range(count):
        metrics = {"rollout/episode_raw_reward": 0.2 + step / 100, "rollout/raw_reward": 0.6 - step / 200}
        odd: dict[str, Any] = {}
        if step == 20:
            odd = {"correction": True, "late_samples": 3}
        if step == 30:
            odd = {"complete": False, "reason": "timeout"}
        made.append(result(step, run=run, metrics=metrics, **{**odd, **changes}))
    return made


def letter(page: Served, **changes: str) -> None:
    page.board.take_letter(
        [(PREFIX + name, text.encode()) for name, text in (LETTER | changes).items()], 10**12, PREFIX
    )


def hand_over(page: Served, *events: dict[str, Any]) -> None:
    log = MemoryLog()
    for event in events:
        log.append(event)
    fold = Fold(FoldSettings(), log.topic, 0)
    fold.feed(log.records)
    wait_until(lambda: page.board.is_watched, "the page looks")
    page.board.take_open(list(fold.open_windows()))


def link(page: Served, run: str, scope: str = "rollout") -> str:
    return f"{page.url}/#{urlencode({'run': run, 'scope': scope})}"


def test_the_run_with_the_newest_result_is_shown_and_all_its_numbers(browser: Browser, page: Served) -> None:
    page.board.take_results([*steps("older", 5), *steps("run-a", closed_unix_ms=1_800_000_000_000)])
    browser.open(page.url)
    browser.wait_for_text("#run", "run-a")
    browser.wait_for_text("#status", "live")
    browser.wait_for_row("#closed", "59", "0", "4", "2", "0.790", "0.305", "-0.485", "complete")
    assert browser.text("#figures").split("\n") == [
        *("Step", "59", "Reward by rollout", "0.790", "Reward by sample", "0.305", "Gap", "-0.485"),
        *("Samples", "4", "Rollouts", "2"),
    ]
    assert len(browser.rows("#closed")) == 20
    browser.click("#older")
    browser.wait_for_text("#closed-note", "21 to 40 of 60")
    rows = browser.rows("#closed")
    assert rows[9][7] == "▲ incomplete: timeout"
    assert rows[19][7] == "◆ corrected, 3 late"
    assert "None: every record could be used." in browser.text("#letters")
    assert browser.driver.title == "run-a · step 59 · 0.790 · stream_metrics"
    assert browser.complaints() == []


@pytest.mark.parametrize("is_dark", [False, True])
def test_the_chart_has_both_rewards_the_marks_and_the_samples_under_them(
    browser: Browser, page: Served, is_dark: bool
) -> None:
    page.board.take_results(steps())
    browser.open(page.url, is_dark=is_dark)
    browser.wait_for_text("#readout", "step 59")
    rewards, samples = "#chart .uplot:first-child canvas", "#chart .uplot:last-child canvas"
    wait_until(lambda: browser.pixels(rewards, "rollout") > 500, "the line of one vote a rollout")
    wait_until(lambda: browser.pixels(rewards, "sample") > 300, "the line of one vote a sample")
    wait_until(lambda: browser.pixels(rewards, "corrected") > 30, "the mark of a correction")
    wait_until(lambda: browser.pixels(rewards, "incomplete") > 30, "the mark of an incomplete step")
    wait_until(lambda: browser.pixels(samples, "count") > 5_000, "the samples")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(16, 21, 28)" if is_dark else "rgb(244, 245, 247)"
    )


def test_pointing_at_a_step_tells_its_numbers(browser: Browser, page: Served) -> None:
    page.board.take_results(steps(count=31))
    browser.open(page.url)
    browser.wait_for_text("#readout", "step 30")
    browser.run(
        """
        const over = document.querySelector("#chart .u-over");
        const { left, top, width } = over.getBoundingClientRect();
        const at = { clientX: left + width * (20.5 / 31), clientY: top + 50, bubbles: true };
        over.dispatchEvent(new MouseEvent("mouseenter", at));
        over.dispatchEvent(new MouseEvent("mousemove", at));
        """
    )
    browser.wait_for_text("#readout", "step 20 · by rollout 0.400 · by sample 0.500")
    assert "corrected, 3 late" in browser.text("#readout")


def test_it_lives_a_step_that_closes_appears_and_an_open_one_fills_up(browser: Browser, page: Served) -> None:
    page.board.take_results(steps(count=3))
    browser.open(page.url)
    browser.wait_for_text("#closed", "0.220")
    hand_over(page, sample(3, 1.0, run_id="run-a", rollout_id=1))
    browser.wait_for_text("#open", "samples, and a close marker")
    browser.wait_for_row("#open", "run-a", "3", "1")
    hand_over(
        page,
        *(sample(3, 1.0, run_id="run-a", rollout_id=number) for number in range(6)),
        close(3, run_id="run-a", expected_samples=8, producer="a", producers=2),
    )
    browser.wait_for_text("#open", "6 of 8")
    assert "1 of 2 close markers and 2 samples" in browser.text("#open")
    assert browser.run("return document.querySelector('#open meter').value") == 0.75
    page.board.take_results([result(3, run="run-a", metrics={"rollout/episode_raw_reward": 0.875})])
    browser.wait_for_text("#figures", "0.875")
    browser.wait_for_row("#closed", "3")
    browser.wait_for_text("#open", "No step is open here.")
    letter(page)
    browser.wait_for_text("#letters", "Expected `int`")
    assert browser.rows("#letters")[0][1:] == ["undecodable", "Expected `int`", "in [0] at 7"]
    assert browser.text("#letters-note") == "1 undecodable"


def test_a_link_shows_the_run_it_names_and_going_back_the_one_before(browser: Browser, page: Served) -> None:
    page.board.take_results([*steps("run-a", 3), *steps("run-b", 4), result(9, run="run-b", scope="eval/aime24")])
    browser.open(link(page, "run-b", "eval/aime24"))
    browser.wait_for_text("#figures", "9")
    browser.wait_for_row("#closed", "9")
    assert (browser.text("#run"), browser.text("#scope")) == ("run-b", "eval/aime24")
    browser.driver.get(link(page, "run-a"))
    browser.wait_for_text("#run", "run-a")
    browser.driver.back()
    browser.wait_for_text("#scope", "eval/aime24")


def test_a_run_that_has_not_closed_a_step_yet_is_said_to(browser: Browser, page: Served) -> None:
    browser.open(page.url)
    browser.wait_for_text("#empty", "appear here by themselves")
    hand_over(page, sample(0, 1.0, run_id="new-run"))
    browser.wait_for_text("#run", "new-run")
    browser.wait_for_text("#closed", "No step of this run has closed yet.")
    assert "no step closed yet" in browser.text("#list")
    page.board.take_results([result(0, run="new-run")])
    browser.wait_for_text("#figures", "0.750")
    assert browser.complaints() == []


HOSTILE = [
    "<img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script>",
    "\u202ereversed \x1b[31m and \x00 unseen",
    "a&b=c#d?e/f%00 'q' \"q\"",
    "",
    "x" * 512,
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_no_name_from_outside_becomes_html(browser: Browser, page: Served, name: str) -> None:
    page.board.take_results([result(4, run=name, scope=name, reason=name, complete=False, correction=True)])
    browser.open(page.url)
    browser.wait_for_text("#figures", "0.750")
    hand_over(page, sample(5, 1.0, run_id=name, scope=name))
    letter(page, reason=name, message=name, topic=name)
    browser.wait_for("document.querySelector('#letters tbody td:nth-child(4)')")
    browser.wait_for("document.querySelector('#open tbody a')")
    assert browser.run("return document.querySelectorAll('main img, nav img, main script, table b').length") == 0
    assert "owned" not in (browser.driver.title if "owned" not in name else "")
    for selector in ("#run", "#scope", "#list .name", "#open tbody td", "#letters tbody td:nth-child(3)"):
        shown = browser.run("return document.querySelector(arguments[0]).textContent", selector)
        assert "\x1b" not in shown and "\x00" not in shown and "\u202e" not in shown
        if name == HOSTILE[0]:
            assert name in shown
        if name == "":
            assert "(empty)" in shown or shown == "–"
    browser.click("#list .run")
    browser.wait_for_text("#figures", "0.750")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.complaints() == []


def test_nothing_is_asked_of_anybody_else(browser: Browser, page: Served) -> None:
    page.board.take_results(steps())
    letter(page)
    browser.open("about:blank")  # the page of the test before asks nothing more
    browser.requests()
    browser.open(page.url)
    browser.wait_for_text("#readout", "step 59")
    asked = [url for url in browser.requests() if not url.startswith(("about:", "data:"))]
    assert len(asked) > 8
    assert {url for url in asked if not url.startswith(f"{page.url}/")} == set()


def test_runs_are_found_by_search_and_keyboard_alone(browser: Browser, page: Served) -> None:
    page.board.take_results([one for number in range(40) for one in steps(f"sweep-{number:02}", 2)])
    browser.open(link(page, "sweep-00"))
    browser.wait_for_text("#run", "sweep-00")
    browser.find("#search").send_keys("sweep-3")
    browser.wait_for_text("#runs-count", "10 of 40")
    browser.type(Keys.ARROW_DOWN)
    browser.type(Keys.ARROW_DOWN)
    browser.type(Keys.ARROW_DOWN)
    active = browser.run("return document.querySelector('.run.active .name').textContent")
    assert active == "sweep-32"
    browser.type(Keys.ENTER)
    browser.wait_for_text("#run", "sweep-32")
    assert browser.run("return document.querySelector('.run[aria-selected=true] .name').textContent") == "sweep-32"


def test_older_steps_are_a_page_away_and_do_not_move_under_the_eyes(browser: Browser, page: Served) -> None:
    page.board.take_results(steps(count=50))
    browser.open(page.url)
    browser.wait_for_text("#closed-note", "1 to 20 of 50")
    browser.click("#older")
    browser.wait_for_text("#closed-note", "21 to 40 of 50")
    assert browser.rows("#closed")[0][0] == "29"
    page.board.take_results(steps(count=70)[50:])
    browser.wait_for_text("#closed-note", "41 to 60 of 70")
    assert browser.rows("#closed")[0][0] == "29"
    browser.click("#newer")
    browser.click("#newer")
    browser.wait_for_text("#closed-note", "1 to 20 of 70")


def test_the_theme_follows_the_system_until_one_is_chosen_which_is_remembered(browser: Browser, page: Served) -> None:
    def background() -> str:
        return str(browser.run("return getComputedStyle(document.body).backgroundColor"))

    page.board.take_results(steps())
    browser.open(page.url)
    browser.wait_for_text("#readout", "step 59")
    light = background()
    browser.prefer(is_dark=True)
    wait_until(lambda: background() != light, "the system's dark")
    dark = background()
    browser.click("#theme")
    assert (browser.text("#theme"), background()) == ("Theme: light", light)
    browser.driver.refresh()
    browser.wait_for_text("#theme", "Theme: light")
    assert background() == light
    browser.click("#theme")
    browser.prefer(is_dark=False)
    assert (browser.text("#theme"), background()) == ("Theme: dark", dark)
    wait_until(lambda: browser.pixels("#chart canvas", "rollout") > 500, "the chart in the dark's colours")
    browser.click("#theme")
    assert (browser.text("#theme"), background()) == ("Theme: system", light)


def test_on_a_phone_nothing_is_cut_off(browser: Browser, page: Served) -> None:
    page.board.take_results([*steps("a run with rather a long name for a phone " * 3), *steps("other", 3)])
    letter(page, message="a message without any blank in it " + "x" * 300)
    browser.open(link(page, "other"), width=360, height=740, scale=2)
    browser.wait_for_text("#run", "other")
    browser.wait_for_row("#closed", "2", "4", "0.220", "0.590", "complete")
    assert len(browser.rows("#closed")[0]) == 5
    assert browser.run("return document.documentElement.scrollWidth") == 360
    assert not browser.find("#runs").is_displayed()
    browser.click("#runs-toggle")
    assert browser.find("#runs").is_displayed()
    browser.run("[...document.querySelectorAll('.run')].find((run) => run.textContent.includes('long')).click()")
    browser.wait_for_text("#run", "a run with rather")
    assert not browser.find("#runs").is_displayed()
    assert browser.run("return document.documentElement.scrollWidth") == 360
    wait_until(lambda: browser.pixels("#chart canvas", "rollout") > 500, "the chart")


def test_every_text_stands_out_from_what_is_behind_it(browser: Browser, page: Served) -> None:
    page.board.take_results(steps())
    letter(page)
    for is_dark in (False, True):
        browser.open(page.url, is_dark=is_dark)
        browser.wait_for_text("#letters", "Expected")
        weak = browser.run(CONTRAST)
        assert weak == [], (is_dark, weak)


CONTRAST = """
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const linear = (one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const colour = channels(getComputedStyle(one).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
};
const weak = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.offsetParent || element.matches(":disabled, .hidden, .skip")) continue;
  const [one, other] = [light(channels(getComputedStyle(element).color)), light(behind(element))];
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (contrast < 4.5) weak.push([element.tagName, element.className, element.textContent.slice(0, 20), contrast]);
}
return weak;
"""


def test_everything_has_a_name_for_those_who_hear_it(browser: Browser, page: Served) -> None:
    page.board.take_results(steps())
    browser.open(page.url)
    browser.wait_for_text("#readout", "step 59")
    tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = {
        "button",
        "link",
        "searchbox",
        "table",
        "img",
        "listbox",
        "option",
        "heading",
        "navigation",
        "columnheader",
    }
    seen = set()
    for node in tree:
        role = node.get("role", {}).get("value")
        if role in named and not node.get("ignored"):
            seen.add(role)
            is_decoration = role in ("img", "table")
            name = node.get("name", {}).get("value", "")
            assert name or is_decoration, node
    assert seen >= {"button", "searchbox", "table", "listbox", "option", "heading", "navigation", "columnheader"}
    (chart,) = (node for node in tree if "Chart of 60 steps" in str(node.get("name", {}).get("value", "")))
    assert "by rollout 0.790" in chart["name"]["value"]


def test_it_says_that_the_sidecar_is_gone_and_goes_on_with_the_next_one(browser: Browser, page: Served) -> None:
    page.board.take_results(steps(count=3))
    browser.open(page.url)
    browser.wait_for_text("#status", "live")
    browser.wait_for_row("#closed", "2")
    page.not_ready = "the broker is away"
    browser.wait_for_text("#status", "not ready: the broker is away")
    port = page.port
    page.close()
    browser.wait_for_text("#status", "trying again")
    assert browser.rows("#closed")[0][0] == "2"  # what was known stays to be read
    with served(port) as again:
        again.board.take_results(steps(count=5))
        browser.wait_for_text("#status", "live")
        browser.wait_for_row("#closed", "4")


def test_while_results_are_read_it_says_how_far(browser: Browser, page: Served) -> None:
    page.board.clear()
    page.board.tell(share=0.43, trouble="")
    browser.open(page.url)
    browser.wait_for_text("#status", "reading the results: 43 %")
    page.board.tell(share=0.0, trouble="topic 'rollout-metrics' isn't there, or may not be read")
    browser.wait_for_text("#status", "topic 'rollout-metrics' isn't there")


FRAMES = """
const done = arguments[arguments.length - 1];
const frames = [];
let last = performance.now();
let next = 0;
const draw = () => {
  const now = performance.now();
  frames.push(now - last);
  last = now;
  if (frames.length % 12 === 0 && next < acts.length) acts[next++]();
  if (frames.length < 12 * (acts.length + 2)) requestAnimationFrame(draw);
  else done(Math.max(...frames));
};
requestAnimationFrame(draw);
"""
ACTS = [
    "const s = document.querySelector('#search'); s.value = '7'; s.dispatchEvent(new Event('input'));",
    "const s = document.querySelector('#search'); s.value = ''; s.dispatchEvent(new Event('input'));",
    "document.querySelector('#list').scrollTop = 20000;",
    "document.querySelector('#ranges button').click();",
    "document.querySelector('#ranges button:last-child').click();",
    "document.querySelector('#older').click();",
]


@pytest.mark.parametrize(("runs", "each"), [(1_000, 100), (1, 100_000)])
def test_it_stays_quick_with_a_thousand_runs_and_a_hundred_thousand_steps(
    browser: Browser, page: Served, runs: int, each: int
) -> None:
    template = json.loads(result(0))
    for step in range(each):
        page.board.take_results(
            json.dumps(template | {"run_id": f"run-{number:03}", "step": step}).encode() for number in range(runs)
        )
    browser.open(link(page, "run-000"))
    browser.wait_for_text("#closed-note", f"of {each:,}")
    browser.wait_for_text("#runs-count", f"{runs:,}")
    assert browser.run("return document.querySelectorAll('*').length") < 2_000
    acts = ",".join(f"() => {{ {act} }}" for act in ACTS)
    # The worst frame of all: here about 0.1 s, where a page without care takes many seconds.
    assert browser.driver.execute_async_script(f"const acts = [{acts}];{FRAMES}") < 5_000
    page.board.take_results([result(each, run="run-000")])
    browser.wait_for_text("#figures", f"{each:,}")
    assert browser.complaints() == []


def test_a_page_that_stays_open_takes_no_more_and_no_more_memory(
    browser: Browser, page: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream_metrics.web.page._SPACING_SECONDS", 0.0)
    page.board.take_results(steps(count=30))
    browser.open(page.url)
    browser.wait_for_text("#status", "live")

    def live_through(rounds: range) -> tuple[int, int, int]:
        """Returns heap, nodes and listeners after so many changes that were drawn."""
        for number in rounds:
            page.board.take_results([result(7, run="run-a", correction=True, late_samples=number), *steps("b", 3)])
            letter(page, offset=str(number))
            hand_over(page, *(sample(number, 1.0, run_id="run-a") for _ in range(number % 3 + 1)))
            browser.wait_for("document.querySelector('#letters').textContent.includes(arguments[0])", f"at {number}")
        browser.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        counters = browser.driver.execute_cdp_cmd("Memory.getDOMCounters", {})
        heap = browser.driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"]
        return heap, counters["nodes"], counters["jsEventListeners"]

    for number in range(200):  # so that there are as many dead letters as there will ever be
        letter(page, offset=f"before {number}")
    before = live_through(range(1_000, 1_060))
    after = live_through(range(1_060, 1_200))
    assert after[0] - before[0] < 1_000_000
    assert after[1] - before[1] < 500
    assert after[2] - before[2] < 20
