from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Any

import pytest

from stream_metrics.web.server import Refusal, Server
from support.waiting import wait_until

SECONDS = 20.0


class Events:
    """A stream that the test feeds; it notes whether it was closed."""

    def __init__(self) -> None:
        self.more = threading.Event()
        self.has_ended = threading.Event()
        self.queries: list[str] = []

    def __call__(self, query: str) -> Iterator[bytes]:
        self.queries.append(query)
        if query == "full":
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many")
        try:
            yield b"data: first\n\n"
            while self.more.wait(SECONDS):
                yield b"data: " + b"x" * 1_000_000 + b"\n\n"
        finally:
            self.has_ended.set()


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[tuple[Server, Events]]:
    events = Events()
    ok = (HTTPStatus.OK, "text/plain", b"ok\n")
    server = Server(host, 0, {"/healthz": lambda: ok}, {"/": lambda: ok}, {"/stream": events})
    try:
        yield server, events
    finally:
        server.close()


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()


@pytest.mark.parametrize("path", ["/", "/healthz", "/nothing"])
def test_no_answer_may_load_or_run_anything_from_elsewhere(path: str) -> None:
    with serving() as (server, _):
        answer, _ = ask(server, path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_head_has_no_body_and_an_unknown_method_is_refused() -> None:
    with serving() as (server, events):
        answer, body = ask(server, "/", "HEAD")
        assert (answer.status, body, answer.headers["Content-Length"]) == (200, b"", "3")
        assert ask(server, "/stream", "HEAD")[0].status == 404
        assert ask(server, "/", "POST")[0].status == 501
        assert events.queries == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8080", "[::1]:80", "10.0.0.7"])
def test_the_page_answers_to_addresses_and_localhost(host: str) -> None:
    with serving() as (server, _):
        assert ask(server, "/", Host=host)[0].status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8080", "localhost.evil.example", "["])
def test_a_site_whose_name_points_here_can_not_read_the_page(host: str) -> None:
    with serving() as (server, events):
        assert ask(server, "/", Host=host)[0].status == 403
        assert ask(server, "/stream", Host=host)[0].status == 403
        assert ask(server, "/healthz", Host=host)[0].status == 200
        assert events.queries == []


def test_a_server_for_the_network_answers_to_any_name() -> None:
    with serving("0.0.0.0") as (server, _):
        assert ask(server, "/", Host="metrics.example")[0].status == 200


@contextmanager
def streaming(server: Server, path: str = "/stream") -> Iterator[tuple[socket.socket, Any]]:
    with closing(socket.create_connection(("127.0.0.1", server.port), SECONDS)) as connected:
        connected.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        with connected.makefile("rb") as answer:
            yield connected, answer


def test_a_stream_gives_its_events_as_they_come_and_hears_that_its_reader_is_gone() -> None:
    with serving() as (server, events):
        with streaming(server, "/stream?run=a%20b") as (_, answer):
            head = iter(answer.readline, b"\r\n")
            assert b"Content-Type: text/event-stream\r\n" in list(head)
            assert answer.readline() == b"data: first\n"
            assert events.queries == ["run=a%20b"]
            assert not events.has_ended.is_set()
        events.more.set()
        assert events.has_ended.wait(SECONDS)


def test_a_stream_may_be_refused() -> None:
    with serving() as (server, _):
        answer, body = ask(server, "/stream?full")
        assert (answer.status, body) == (503, b"too many\n")


def test_a_reader_that_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as (server, events):
        monkeypatch.setattr(server._server.RequestHandlerClass, "timeout", 0.2)
        with streaming(server) as (_, answer):
            answer.readline()
            events.more.set()  # far more than the system's buffers hold
            assert events.has_ended.wait(SECONDS)


def test_a_stalled_reader_holds_nobody_up() -> None:
    with serving() as (server, events), streaming(server) as (_, answer):
        answer.readline()
        events.more.set()
        assert ask(server, "/healthz")[0].status == 200


def test_a_closed_server_answers_no_more() -> None:
    with serving() as (server, _):
        port = server.port
        assert ask(server, "/")[0].status == 200

    def is_gone() -> bool:
        with closing(socket.socket()) as one:
            return one.connect_ex(("127.0.0.1", port)) != 0

    wait_until(is_gone, "the port is closed")
