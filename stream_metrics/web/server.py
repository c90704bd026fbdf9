"""A small HTTP server on threads of its own: probes, files, and streams of server-sent events.

What it sends may hold what producers wrote, so no answer may be taken for another type, framed, or let load anything
from elsewhere. Names that a page in a browser could have pointed at this machine are refused: see `guarded`.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

Answer = tuple[HTTPStatus, str, bytes]
Stream = Callable[[str], Iterator[bytes]]

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PLAIN: Final = "text/plain; charset=utf-8"
_CHUNK_BYTES: Final = 65_536
"""So much must be taken within the handler's time, however much there is in all."""


class Refusal(Exception):  # noqa: N818 - the answer to one request, no error of ours
    """What a stream raises before its first event instead of beginning."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """Serves GET requests until closed.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 lets the system choose.
        pages: From path to what answers it.
        guarded: The same for those that answer only to an address or `localhost` as the host's name where the
            server listens on a loopback address: else any web site could have its own name point here, and read them.
        streams: From path to what makes the events, given the query; guarded too. It is closed when its reader is gone
            or the server ends.

    Raises:
        OSError: The address can't be listened on.
    """

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Callable[[], Answer]],
        guarded: Mapping[str, Callable[[], Answer]] | None = None,
        streams: Mapping[str, Stream] | None = None,
    ) -> None:
        files: Mapping[str, Callable[[], Answer]] = guarded or {}
        events_of: Mapping[str, Stream] = streams or {}

        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            server_version = "stream-metrics"
            sys_version = ""
            timeout = 10

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                if outer._is_local and (path in files or path in events_of) and not _is_plain(self.headers["Host"]):
                    self._answer(HTTPStatus.FORBIDDEN, _PLAIN, b"not by this name: use localhost or an IP address\n")
                elif path in events_of and self.command == "GET":
                    self._stream(events_of[path](query))
                else:
                    page = pages.get(path) or files.get(path)
                    self._answer(*(page() if page else (HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")))

            do_HEAD = do_GET  # noqa: N815 - the base class wants this name

            def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
                self._begin(status, kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def _stream(self, events: Iterator[bytes]) -> None:
                try:
                    first = next(events)
                except Refusal as refusal:
                    self._answer(refusal.status, _PLAIN, f"{refusal}\n".encode())
                    return
                try:
                    self.close_connection = True
                    self._begin(HTTPStatus.OK, "text/event-stream")
                    self.send_header("Connection", "close")
                    self.end_headers()
                    self._write(first)
                    for event in events:
                        self._write(event)
                except OSError:
                    pass  # gone, or too slow: it comes again
                finally:
                    events.close()  # type: ignore[attr-defined]  # a generator, which must hear of it

            def _begin(self, status: HTTPStatus, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                for name, value in _HEADERS.items():
                    self.send_header(name, value)

            def _write(self, events: bytes) -> None:
                for start in range(0, len(events), _CHUNK_BYTES):
                    self.wfile.write(events[start : start + _CHUNK_BYTES])

            def log_message(self, *_: Any) -> None:
                """Says nothing: probes come every few seconds."""

        self._is_local = False
        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        address = self._server.socket.getsockname()
        self._is_local = ipaddress.ip_address(address[0]).is_loopback
        self.port = int(address[1])
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _is_plain(host: str | None) -> bool:
    """Returns whether a Host header is an address or `localhost`; no browser sends none."""
    try:
        name = urlsplit(f"//{host or ''}").hostname
        return name in (None, "localhost") or bool(ipaddress.ip_address(str(name)))
    except ValueError:
        return False
