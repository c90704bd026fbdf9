"""A small HTTP server on a thread of its own: `/metrics`, `/healthz`, `/readyz`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[HTTPStatus, str, bytes]


class Server:
    """Serves GET requests until closed.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 lets the system choose.
        pages: From path to what answers it.

    Raises:
        OSError: The address can't be listened on.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Answer]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            server_version = "stream-metrics"
            sys_version = ""
            timeout = 10

            def do_GET(self) -> None:
                page = pages.get(self.path.split("?")[0])
                status, kind, body = page() if page else (HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815 - the base class wants this name

            def log_message(self, *_: Any) -> None:
                """Says nothing: probes come every few seconds."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
