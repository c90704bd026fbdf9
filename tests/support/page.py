"""The page's server with a board that a test fills, no sidecar and no broker behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stream_metrics.config import Settings
from stream_metrics.web.board import Board
from stream_metrics.web.page import Page
from stream_metrics.web.server import Server


class _NoReader:
    """Reads nothing; keeps what a reader would fill."""

    def __init__(self, _: Settings, board: Board, num_viewers: Callable[[], int]) -> None:
        self.board = board
        self.num_viewers = num_viewers

    def want(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def join(self, seconds: float) -> None:
        pass


class Served:
    """A page on a port.

    Attributes:
        board: What the test fills.
        not_ready: What keeps the sidecar from being ready.
        port: Where it listens.
    """

    def __init__(self, port: int) -> None:
        made: list[_NoReader] = []

        def make_reader(*args: Any) -> Any:
            made.append(_NoReader(*args))
            return made[0]

        self.not_ready = ""
        self._page = Page(Settings(), "9.9", lambda: self.not_ready, make_reader)
        self.board = made[0].board
        self.num_viewers = made[0].num_viewers
        self._server = Server("127.0.0.1", port, {}, self._page.files(), self._page.streams)
        self.port = self._server.port
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._page.close()
        self._server.close()


@contextmanager
def served(port: int = 0) -> Iterator[Served]:
    """A page that has read its topics, which are empty."""
    made = Served(port)
    made.board.tell(share=None, trouble="")
    try:
        yield made
    finally:
        made.close()
