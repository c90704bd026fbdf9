"""Reads the page's stream of events, as `watch` does: what is known, and a thread that keeps it so.

The server's names of columns are gone by, so that a newer server with more of them is understood.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

CORRECTED: Final = 1
INCOMPLETE: Final = 2

_STREAM: Final = "/api/stream"
_SILENCE_SECONDS: Final = 20.0
"""The server sends something every five seconds."""

_RETRY_SECONDS: Final = 1.0
_MAX_KEPT: Final = 4_000

Row = dict[str, Any]
RunKey = tuple[str, str]


class NoSidecarError(Exception):
    """What answers at the address is no sidecar, or won't have us; the message says why."""


@dataclass
class Known:
    """What the stream has said so far.

    Attributes:
        runs: The last closed step of each run and scope.
        steps: The newest closed steps of the selected one, by step.
        wholes: How often all runs have been told anew.
        fresh: Steps that closed since the last look at them, of any run where those of all are streamed.
        open: Open steps of the replica that answers.
        letters: Dead letters, oldest first.
        share: How much of the topics the sidecar has read, None for all.
        trouble: What keeps it from reading.
        not_ready: What keeps it from being ready.
        hello: What it says of itself.
        offset_ms: Its clock less ours.
    """

    runs: dict[RunKey, Row] = field(default_factory=dict)
    wholes: int = 0
    steps: dict[int, Row] = field(default_factory=dict)
    fresh: list[Row] = field(default_factory=list)
    open: list[Row] = field(default_factory=list)
    open_total: int = 0
    letters: list[Row] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    share: float | None = 0.0
    trouble: str = ""
    not_ready: str = ""
    hello: Row = field(default_factory=dict)
    offset_ms: int = 0

    def take(self, name: str, told: Row, now_unix_ms: int) -> None:
        """Takes an event; one of a kind not known here is passed over."""
        if name == "hello":
            self.hello = told
        if name in ("hello", "status"):
            self.offset_ms = told["now_unix_ms"] - now_unix_ms
            self.not_ready = told.get("not_ready", self.not_ready)
        elif name == "progress":
            self.share, self.trouble = told["share"], told["trouble"]
        elif name == "open_steps":
            self.open = [dict(zip(self.hello["open_columns"], row, strict=False)) for row in told["rows"]]
            self.open_total = told["total"]
        elif name == "letters":
            self.letters = told["rows"]
        elif name == "runs":
            self._take_runs(told)
        elif name == "steps":
            self._take_steps(told)

    def _take_runs(self, told: Row) -> None:
        self.reasons = told["reasons"]
        if told["whole"]:
            self.runs.clear()
            self.wholes += 1
        columns = ("run", "scope", "steps", *self.hello["step_columns"])
        for row in told["rows"]:
            self.runs[row[0], row[1]] = dict(zip(columns, row, strict=False))

    def _take_steps(self, told: Row) -> None:
        columns: Mapping[str, list[Any]] = told["columns"]
        rows = [
            {"run": told["run"], "scope": told["scope"], **dict(zip(columns, items, strict=True))}
            for items in zip(*columns.values(), strict=True)
        ]
        if told["whole"]:
            self.steps.clear()
        self.steps.update((row["step"], row) for row in rows)
        if len(self.steps) > 2 * _MAX_KEPT:
            self.steps = {step: self.steps[step] for step in sorted(self.steps)[-_MAX_KEPT:]}
        self.fresh += rows[-_MAX_KEPT:]

    def newest_runs(self) -> list[RunKey]:
        """Returns the runs, the one with the newest result first; those with open steps only come last."""
        closed = sorted(self.runs, key=lambda key: -self.runs[key]["closed_unix_s"])
        return closed + list(
            dict.fromkeys(key for row in self.open if (key := (row["run"], row["scope"])) not in self.runs)
        )


class Watcher:
    """Keeps `known` up to date on a thread of its own, however often the sidecar goes and comes.

    Args:
        url: Where the sidecar serves its page.
        now_unix_ms: The wall clock.
        on_change: Called, on the thread, after each event and each change of the connection.
    """

    def __init__(self, url: str, now_unix_ms: Callable[[], int], on_change: Callable[[], None]) -> None:
        self._address = _address(url)
        self._now_unix_ms = now_unix_ms
        self._on_change = on_change
        self._query = ""
        self._socket: socket.socket | None = None
        self._version = 0
        self._stopping = threading.Event()
        self.lock = threading.Lock()
        self.known = Known()
        self.lost = "connecting"
        """Why there is no connection, "" where there is one."""
        self.refused: NoSidecarError | None = None
        self.connections = 0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self, **query: str) -> None:
        self._query = urlencode(query)
        self._thread.start()

    def select(self, key: RunKey, **query: str) -> None:
        """Begins a stream for another run."""
        with self.lock:
            self._query = urlencode({"run": key[0], "scope": key[1], **query})
            self._version += 1
            self.known.steps.clear()
            self.known.fresh.clear()
            self._cut()

    def stop(self) -> None:
        self._stopping.set()
        with self.lock:
            self._cut()

    def _cut(self) -> None:
        if self._socket is not None:
            # Not close(): the other thread reads from it, and only this ends its wait.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._stopping.is_set():
            version = self._version
            try:
                self._stream(version)
                self._lose("the sidecar has ended the connection")
            except NoSidecarError as error:
                self.refused = error
                self._on_change()
                return
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._lose(getattr(error, "strerror", None) or str(error) or type(error).__name__)
            if version == self._version:
                self._stopping.wait(_RETRY_SECONDS)

    def _lose(self, why: str) -> None:
        self.lost = why
        self._on_change()

    def _stream(self, version: int) -> None:
        kind = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._address.netloc, timeout=_SILENCE_SECONDS)
        try:
            with self.lock:
                query = self._query
            connection.request("GET", f"{self._address.path.rstrip('/')}{_STREAM}?{query}")
            with self.lock:
                self._socket = connection.sock
            answer = connection.getresponse()
            self._check(answer)
            for name, told in _events(answer):
                with self.lock:
                    if version != self._version:
                        return
                    if self.lost:
                        self.lost = ""
                        self.connections += 1
                    self.known.take(name, told, self._now_unix_ms())
                self._on_change()
        finally:
            with self.lock:
                self._socket = None
            connection.close()

    def _check(self, answer: http.client.HTTPResponse) -> None:
        if answer.status in (502, 503, 504):
            raise http.client.HTTPException(answer.read(200).decode("utf-8", "replace").strip() or answer.reason)
        if answer.status != 200 or answer.headers.get_content_type() != "text/event-stream":
            told = answer.read(200).decode("utf-8", "replace").strip().partition("\n")[0]
            raise NoSidecarError(f"no sidecar's page at {self._address.geturl()}: HTTP {answer.status}, {told!r}")


def _address(url: str) -> SplitResult:
    try:
        address = urlsplit(url if "://" in url else f"http://{url}")
        if address.scheme in ("http", "https") and address.hostname and address.port != 0:
            return address
    except ValueError:
        pass
    raise NoSidecarError(f"{url!r} is no address of a sidecar's page, such as http://127.0.0.1:8080")


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Row]]:
    """Yields server-sent events; each has one line of data here."""
    name = ""
    for line in answer:
        if line.startswith(b"event: "):
            name = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])
