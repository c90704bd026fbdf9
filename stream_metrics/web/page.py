"""The live page: its files, and the stream of events that page and `watch` read.

The stream is server-sent events: first all there is for this viewer, then what changes, at most four times a second. A
viewer that doesn't take it for ten seconds is dropped; it comes back by itself and gets everything again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from stream_metrics.config import Settings
from stream_metrics.core.window import Window
from stream_metrics.web.board import COLUMNS, MAX_STEPS, OPEN_COLUMNS, Board, Viewer
from stream_metrics.web.reader import Reader
from stream_metrics.web.server import Answer, Refusal

MAX_VIEWERS: Final = 32
STREAM: Final = "/api/stream"

_SPACING_SECONDS: Final = 0.25
_PART_SECONDS: Final = 0.02
_HEARTBEAT_SECONDS: Final = 5.0
_READINESS_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 1.0

_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/static/page.css": ("page.css", "text/css; charset=utf-8"),
    "/static/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/static/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
    "/static/runs.js": ("runs.js", "text/javascript; charset=utf-8"),
    "/static/steps.js": ("steps.js", "text/javascript; charset=utf-8"),
    "/static/tables.js": ("tables.js", "text/javascript; charset=utf-8"),
    "/static/text.js": ("text.js", "text/javascript; charset=utf-8"),
    "/static/icon.svg": ("icon.svg", "image/svg+xml"),
    "/static/uplot/uPlot.iife.min.js": ("uplot/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    "/static/uplot/uPlot.min.css": ("uplot/uPlot.min.css", "text/css; charset=utf-8"),
    "/static/uplot/LICENSE": ("uplot/LICENSE", "text/plain; charset=utf-8"),
}


class Page:
    """What the HTTP server serves beside the probes.

    Args:
        settings: All settings.
        version: The program's.
        readiness: Tells what keeps the sidecar from being ready, "" for nothing.
        make_reader: Makes what fills the board.
    """

    def __init__(
        self,
        settings: Settings,
        version: str,
        readiness: Callable[[], str],
        make_reader: Callable[[Settings, Board, Callable[[], int]], Reader] = Reader,
    ) -> None:
        self._readiness = readiness
        self._board = Board()
        self._viewers = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._hello = {
            "version": version,
            "boot": uuid.uuid4().hex,
            "input_topic": settings.input_topic,
            "output_topic": settings.output_topic,
            "dead_letter_topic": settings.dead_letter_topic,
            "close_grace_seconds": settings.close_grace_seconds,
            "idle_timeout_seconds": settings.idle_timeout_seconds,
            "step_columns": [name for name, _ in COLUMNS],
            "open_columns": OPEN_COLUMNS,
        }
        self._reader = make_reader(settings, self._board, lambda: self._viewers)
        self.streams: Mapping[str, Callable[[str], Iterator[bytes]]] = {STREAM: self.stream}

    def take_open(self, windows: list[Window]) -> None:
        """Takes the open windows of this replica; costs nothing while nobody looks."""
        self._board.take_open(windows)

    def files(self) -> dict[str, Callable[[], Answer]]:
        """Returns what answers each path of the page's files."""
        return {path: _file(name, kind) for path, (name, kind) in _FILES.items()}

    def close(self) -> None:
        """All streams end."""
        self._stopping.set()
        self._board.close()
        self._reader.stop()
        self._reader.join(_STOP_SECONDS)

    def stream(self, query: str) -> Iterator[bytes]:
        """Yields the events for one viewer.

        Args:
            query: `run` and `scope` name whose steps it wants, `count` how many of those that have closed; `all` wants
                those of all runs that close from now on.

        Raises:
            Refusal: There are too many viewers.
        """
        given = parse_qs(query, keep_blank_values=True)
        run, scope = given.get("run"), given.get("scope")
        count = given.get("count", [""])[0]
        viewer = Viewer(
            (run[0], scope[0]) if run and scope else None,
            is_all="all" in given,
            count=int(count) if count.isdecimal() and len(count) < 9 else MAX_STEPS,
        )
        self._enter()
        try:
            yield b"retry: 1000\n\n" + _event("hello", {**self._hello, **_now()})
            not_ready = None
            told_at = time.monotonic()
            while not self._stopping.is_set():
                news = self._board.look(viewer)
                now = time.monotonic()
                if self._readiness() != not_ready or now - told_at >= _HEARTBEAT_SECONDS:
                    not_ready, told_at = self._readiness(), now
                    news.insert(0, ("status", {"not_ready": not_ready, **_now()}))
                if news:
                    yield b"".join(_event(name, told) for name, told in news)
                    self._stopping.wait(_PART_SECONDS if viewer.is_owed else _SPACING_SECONDS)
                self._board.wait(viewer, _READINESS_SECONDS)
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            if self._viewers >= MAX_VIEWERS:
                raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{MAX_VIEWERS} viewers look already")
            self._viewers += 1
            self._board.is_watched = True
        self._reader.want()

    def _leave(self) -> None:
        with self._lock:
            self._viewers -= 1
            self._board.is_watched = self._viewers > 0


def _event(name: str, told: Mapping[str, Any]) -> bytes:
    # msgspec writes no line breaks, which would end the event.
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(told) + b"\n\n"


def _now() -> dict[str, int]:
    return {"now_unix_ms": int(time.time() * 1000)}


def _file(name: str, kind: str) -> Callable[[], Answer]:
    def answer() -> Answer:
        return HTTPStatus.OK, kind, (resources.files("stream_metrics.web") / "static" / name).read_bytes()

    return answer
