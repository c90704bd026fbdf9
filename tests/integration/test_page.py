"""The live page of a real sidecar, in a real browser: from the samples to what a person sees."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_metrics.config import Settings
from stream_metrics.testing import close, sample
from stream_metrics.web.board import Board, Viewer
from stream_metrics.web.reader import IDLE_SECONDS, Reader
from support.brokers import Broker
from support.browser import Browser, chromium
from support.operations import Operated, operated
from support.results import result
from support.topics import NewRecord, create_topic, produce, unique_name
from support.waiting import wait_until

SECONDS = 60.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture
def sidecar(broker: Broker, tmp_path: Path) -> Iterator[Operated]:
    with operated(broker.bootstrap, tmp_path) as made:
        yield made


def url(sidecar: Operated) -> str:
    return f"http://127.0.0.1:{sidecar.process.settings['http-port']}"


def test_a_run_is_followed_from_its_first_sample_to_its_corrections(browser: Browser, sidecar: Operated) -> None:
    sidecar.start_ready(close_grace=3)
    browser.open(url(sidecar))
    browser.wait_for_text("#empty", "appear here by themselves")
    one = {"group_index": 0, "rollout_id": 1}
    sidecar.send(sample(0, 1.0, **one), sample(0, 1.0, **one), sample(0, 1.0, **one), run_id="<b>run</b>")
    browser.wait_for_text("#open", "samples, and a close marker")
    browser.wait_for_row("#open", "<b>run</b>", "0", "3", "", "1")
    sidecar.send(sample(0, 0.0, group_index=0, rollout_id=2), close(0, expected_samples=4), run_id="<b>run</b>")
    browser.wait_for_row("#closed", "0", "0", "4", "2", "0.500", "0.750", "+0.250", "complete")
    browser.wait_for_text("#open", "No step is open here.")
    sidecar.send(sample(0, 0.0, group_index=0, rollout_id=3), run_id="<b>run</b>")
    browser.wait_for_text("#closed", "◆ corrected, 1 late")
    browser.wait_for_row("#closed", "0", "0", "5", "3", "0.333", "0.600")
    sidecar.send(sample(1, 1.0), close(1, expected_samples=2), run_id="<b>run</b>")
    browser.wait_for_text("#open", "1 sample; closes as it is")
    browser.wait_for_text("#closed", "▲ incomplete: timeout")
    sidecar.send(b'{"type": "sample", "step": "<i>seven</i>"}', run_id="<b>run</b>")
    sidecar.wait_for_letters(1)
    browser.wait_for_text("#letters", "undecodable")
    assert "Expected `int`, got `str`" in browser.text("#letters")
    assert sidecar.deployment.input_topic in browser.text("#letters")
    assert browser.text("#run") == "<b>run</b>"
    assert browser.complaints() == []


def test_after_a_kill_and_a_restart_it_fills_again_from_the_topics(browser: Browser, sidecar: Operated) -> None:
    sidecar.start_ready(instance_id="one")
    for step in range(5):
        sidecar.send(sample(step, 1.0), close(step), run_id="lasting")
    sidecar.send(b"poison", sample(5, 1.0), run_id="lasting")
    browser.open(url(sidecar))
    browser.wait_for_text("#closed-note", "5")
    browser.wait_for_text("#letters", "undecodable")
    browser.wait_for_text("#open", "lasting")
    before = browser.rows("#closed")
    sidecar.process.kill()
    browser.wait_for_text("#status", "trying again")
    port = sidecar.process.settings["http-port"]
    sidecar.process = sidecar.deployment.start(http_port=port, instance_id="one")
    browser.wait_for_text("#status", "live")
    wait_until(lambda: browser.rows("#closed") == before, "the steps are there again")
    browser.open(f"http://127.0.0.1:{port}")  # and for somebody new
    browser.wait_for_text("#open", "lasting")
    browser.wait_for_text("#letters", "undecodable")
    wait_until(lambda: browser.rows("#closed") == before, "the steps are there for somebody new")


def test_each_replica_shows_the_results_of_all(browser: Browser, sidecar: Operated) -> None:
    sidecar.start_ready(instance_id="one")
    for run in ("a", "b", "c"):
        sidecar.send(sample(0, 1.0), close(0), run_id=run)
    sidecar.wait_for_results(3)
    sidecar.start(instance_id="two").wait_for("listening")
    browser.open(url(sidecar))
    browser.wait_for_text("#runs-count", "3")
    assert sorted(browser.text("#list").split("\n")[::4]) == ["a", "b", "c"]


def test_a_page_that_is_looked_at_holds_no_stop_up(sidecar: Operated) -> None:
    import urllib.request

    sidecar.start_ready()
    sidecar.send(sample(0, 1.0), close(0), run_id="r")
    ended = threading.Event()
    streams = [
        urllib.request.urlopen(f"{url(sidecar)}/api/stream?run=r&scope=rollout", timeout=SECONDS) for _ in range(5)
    ]
    for stream in streams:
        wait_until(lambda stream=stream: b"event: steps" in stream.readline(), "the run")  # type: ignore[misc]

    def read() -> None:
        for stream in streams:
            with stream:
                stream.read()
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    assert sidecar.process.terminate(15) == 0, sidecar.process.told()
    assert ended.wait(SECONDS)


def test_a_topic_that_is_missing_is_said_and_waited_for(browser: Browser, sidecar: Operated) -> None:
    output = unique_name("not-there")
    sidecar.start(output_topic=output).wait_for("listening")
    browser.open(url(sidecar))
    browser.wait_for_text("#status", f"topic '{output}' isn't there")
    sidecar.make_topic(output, 2, cleanup_policy="compact")
    sidecar.process.wait_for("partitions assigned")
    sidecar.send(sample(0, 1.0), close(0), run_id="after")
    browser.wait_for_text("#run", "after")
    browser.wait_for_text("#status", "live")


def test_while_the_broker_is_away_what_is_known_stays_and_that_is_said(
    browser: Browser, stoppable_broker: Broker, tmp_path: Path
) -> None:
    with operated(stoppable_broker.bootstrap, tmp_path) as sidecar:
        sidecar.start_ready()
        sidecar.send(sample(0, 1.0), close(0), run_id="kept")
        browser.open(url(sidecar))
        browser.wait_for_text("#run", "kept")
        browser.wait_for_text("#status", "live")
        browser.wait_for_text("#closed", "complete")
        before = browser.rows("#closed")
        stoppable_broker.kill()
        browser.wait_for("document.querySelector('#status').dataset.state === 'wait'")
        assert browser.rows("#closed") == before
        stoppable_broker.start()
        browser.wait_for_text("#status", "live", 180)  # though nothing new has come
        wait_until(lambda: browser.rows("#closed") == before, "the steps are there again")


def test_what_nobody_looks_at_is_let_go_and_read_again_for_the_next_one(broker: Broker) -> None:
    settings = Settings(
        bootstrap_servers=broker.bootstrap,
        output_topic=create_topic(broker.bootstrap, "output", 2),
        dead_letter_topic=create_topic(broker.bootstrap, "letters"),
    )
    records = [NewRecord(result(step, run=f"run-{step % 2}"), partition=step % 2) for step in range(50)]
    produce(broker.bootstrap, settings.output_topic, records)
    now, viewers = 0.0, 1

    def steps() -> int:
        found = dict(board.look(Viewer())).get("runs")
        return 0 if found is None else int(found["steps"])

    board = Board()
    reader = Reader(settings, board, lambda: viewers, lambda: now)
    try:
        assert steps() == 0
        reader.want()
        wait_until(lambda: steps() == 50, "all is read", SECONDS)
        viewers, now = 0, IDLE_SECONDS / 2
        produce(broker.bootstrap, settings.output_topic, [NewRecord(result(50, run="run-0"), partition=0)])
        wait_until(lambda: steps() == 51, "it is read on for a while", SECONDS)
        now = IDLE_SECONDS * 2
        wait_until(lambda: steps() == 0, "nothing is kept", SECONDS)
        viewers = 1
        reader.want()
        wait_until(lambda: steps() == 51, "all is read again", SECONDS)
    finally:
        reader.stop()
        reader.join(SECONDS)
