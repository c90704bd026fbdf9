"""A TCP proxy between clients and a broker that cuts, holds, slows and swallows what goes through it, client by client.

A client is known by the `client.id` that its first request names. It must be told of the proxy as the broker itself
tells it, `Broker.proxied_bootstrap`: from the second connection on clients go where the broker says it is.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

_CHUNK_BYTES = 65_536
_NAME_AT = 14
"""A request: four bytes each of size, api and version, and correlation; two of the name's length; the name."""


class Api(IntEnum):
    """What a request asks for, as its number in the protocol."""

    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


@dataclass
class Line:
    """What the lines of one client are like. All false: as good as none between.

    Attributes:
        is_cut: Connections are broken off, and new ones too.
        is_held: Connections stay, and nothing comes through.
        delay_seconds: Before each piece, in each direction.
        bytes_per_second: At most, per connection and direction; 0 for no bound.
        swallowed: Kinds of requests that don't arrive; all others do.
        unanswered: Kinds of requests that arrive, after which nothing comes back through their connection.
    """

    is_cut: bool = False
    is_held: bool = False
    delay_seconds: float = 0.0
    bytes_per_second: int = 0
    swallowed: frozenset[Api] = frozenset()
    unanswered: frozenset[Api] = frozenset()


@dataclass(eq=False)
class _Connection:
    client: str
    ends: list[asyncio.StreamWriter] = field(default_factory=list)
    is_mute: bool = False

    def abort(self) -> None:
        for end in self.ends:
            end.transport.abort()


class Proxy:
    """Runs in a thread of its own while it is entered.

    Args:
        listen: host:port that the broker publishes.
        target: host:port of the broker.
    """

    def __init__(self, listen: str, target: str) -> None:
        self._listen = _address(listen)
        self._target = _address(target)
        self._lines: dict[str, Line] = {}
        self._connections: set[_Connection] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self.num_connections = 0
        self.swallowed: Counter[Api] = Counter()  # and left without an answer
        self.num_bytes = 0

    def __enter__(self) -> Proxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def change(self, client: str, line: Line) -> None:
        """The client's lines are like this from now on; `Line()` heals them."""

        def change() -> None:
            self._lines[client] = line
            if line.is_cut:
                self._break(client)
            self._changed.set()
            self._changed = asyncio.Event()

        self._do(change)

    def reset(self, client: str) -> None:
        """All connections that the client has now are broken off, once."""
        self._do(lambda: self._break(client))

    def _do(self, action: Callable[[], None]) -> None:
        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(10)

    def _break(self, client: str) -> None:
        for connection in [one for one in self._connections if one.client == client]:
            connection.abort()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, *self._listen, reuse_port=True)  # the broker holds it

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection("", [writer])
        self._connections.add(connection)
        try:
            head = await reader.readexactly(_NAME_AT)
            name = await reader.readexactly(max(0, int.from_bytes(head[-2:], "big", signed=True)))
            connection.client = name.decode("utf-8", "replace")
            if self._line(connection).is_cut:
                return
            self.num_connections += 1
            from_broker, to_broker = await asyncio.open_connection(*self._target)
            connection.ends.append(to_broker)
            size = int.from_bytes(head[:4], "big")
            first = head + name + await reader.readexactly(size + 4 - len(head) - len(name))
            await self._pass_request(connection, first, to_broker)
            await asyncio.gather(
                self._pump_requests(connection, reader, to_broker),
                self._pump(connection, from_broker, writer),
            )
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one end is gone, or the proxy: so the other has to go
        finally:
            connection.abort()
            self._connections.discard(connection)

    async def _pump_requests(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            size = await reader.readexactly(4)
            await self._pass_request(connection, size + await reader.readexactly(int.from_bytes(size, "big")), writer)

    async def _pass_request(self, connection: _Connection, request: bytes, writer: asyncio.StreamWriter) -> None:
        number, line = int.from_bytes(request[4:6], "big"), self._line(connection)
        for api in line.swallowed | line.unanswered:
            if api == number:
                self.swallowed[api] += 1
                if api in line.swallowed:
                    return
                connection.is_mute = True
        await self._pass(connection, request, writer)

    async def _pump(self, connection: _Connection, reader: Any, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if not connection.is_mute:
                await self._pass(connection, data, writer)
        raise ConnectionResetError

    async def _pass(self, connection: _Connection, data: bytes, writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(data), _CHUNK_BYTES):
            piece = data[start : start + _CHUNK_BYTES]
            while (line := self._line(connection)).is_held:
                await self._changed.wait()
            if line.delay_seconds:
                await asyncio.sleep(line.delay_seconds)
            if line.bytes_per_second:
                await asyncio.sleep(len(piece) / line.bytes_per_second)
            writer.write(piece)
            self.num_bytes += len(piece)
            await writer.drain()

    def _line(self, connection: _Connection) -> Line:
        return self._lines.get(connection.client) or Line()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
