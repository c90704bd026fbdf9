from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from stream_metrics.web import page as module
from support.page import Served, served
from support.results import result
from support.waiting import wait_until

SECONDS = 20.0


class Reading:
    """A stream that is read by hand."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def until(self, name: str) -> dict[str, Any]:
        """Returns the next event of a name, those before it left out."""
        for line in self._answer:
            if line == f"event: {name}\n".encode():
                return dict(json.loads(self._answer.readline().removeprefix(b"data: ")))
        raise AssertionError(f"the stream has ended without {name}")

    def ends(self) -> bool:
        """Returns whether it ends in time; one that goes on is heard of every few seconds."""
        deadline = time.monotonic() + SECONDS
        return all(time.monotonic() < deadline for _ in self._answer)


@contextmanager
def reading(page: Served, **query: str) -> Iterator[Reading]:
    with urllib.request.urlopen(f"{page.url}/api/stream?{urlencode(query)}", timeout=SECONDS) as answer:
        yield Reading(answer)


def test_a_stream_says_who_speaks_then_what_there_is_then_what_changes() -> None:
    with served() as page:
        page.board.take_results([result(1), result(2)])
        with reading(page, run="r", scope="rollout") as stream:
            hello = stream.until("hello")
            assert (hello["version"], hello["output_topic"]) == ("9.9", "rollout-metrics")
            assert stream.until("status")["not_ready"] == ""
            assert stream.until("steps")["columns"]["step"] == [1, 2]
            page.board.take_results([result(3)])
            steps = stream.until("steps")
            assert (steps["whole"], steps["columns"]["step"]) == (False, [3])


@pytest.mark.parametrize("name", ["", "a&b=c#d", "é\u202e😀", "line\nbreak\r\n\r\n", '"quoted\\"', "x" * 512])
def test_names_of_odd_characters_go_through_address_and_stream(name: str) -> None:
    with served() as page:
        page.board.take_results([result(1, run=name, scope=name)])
        with reading(page, run=name, scope=name) as stream:
            steps = stream.until("steps")
            assert (steps["run"], steps["scope"], steps["columns"]["step"]) == (name, name, [1])


def test_it_says_when_the_sidecar_is_no_longer_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READINESS_SECONDS", 0.01)
    with served() as page, reading(page) as stream:
        assert stream.until("status")["not_ready"] == ""
        page.not_ready = "the broker is away"
        assert stream.until("status")["not_ready"] == "the broker is away"


def test_it_is_heard_of_though_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READINESS_SECONDS", 0.01)
    monkeypatch.setattr(module, "_HEARTBEAT_SECONDS", 0.05)
    with served() as page, reading(page) as stream:
        first, second, third = (stream.until("status")["now_unix_ms"] for _ in range(3))
        assert first <= second <= third


def test_open_steps_are_asked_for_only_while_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READINESS_SECONDS", 0.01)
    monkeypatch.setattr(module, "_HEARTBEAT_SECONDS", 0.01)
    with served() as page:
        assert not page.board.is_watched
        with reading(page) as stream:
            stream.until("status")
            assert page.board.is_watched and page.num_viewers() == 1
        wait_until(lambda: page.num_viewers() == 0, "the viewer is gone")
        assert not page.board.is_watched


def test_there_are_so_many_viewers_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VIEWERS", 1)
    with served() as page, reading(page) as stream:
        stream.until("hello")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{page.url}/api/stream", timeout=SECONDS)
        with caught.value as refused:
            assert (refused.code, refused.read()) == (503, b"1 viewers look already\n")


@pytest.mark.parametrize(
    "query", ["count=", "count=-1", "count=x", "count=99999999999", "run=r", "scope=%ff", "&&=&all"]
)
def test_a_query_that_makes_no_sense_is_no_error(query: str) -> None:
    with served() as page, urllib.request.urlopen(f"{page.url}/api/stream?{query}", timeout=SECONDS) as answer:
        Reading(answer).until("runs")


def test_a_stream_ends_with_its_page() -> None:
    made = Served(0)
    with reading(made) as stream:
        stream.until("hello")
        made.close()
        assert stream.ends()
