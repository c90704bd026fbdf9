"""An embedded broker: librdkafka's mock cluster, alive as long as the client that holds it.

For show only. It keeps no transactional offsets, shows aborted messages, and answers no question about rights and
settings; nothing that is promised of the sidecar can be tested with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from confluent_kafka import Producer

_ANSWER_SECONDS: Final = 10.0


class EmbeddedBroker:
    """A mock broker on a port of this machine that the system chose.

    Attributes:
        bootstrap_servers: Its address, for clients of this and other processes.
    """

    def __init__(self) -> None:
        # The cluster belongs to this client, and listens on real ports: its own metadata tells which.
        self._client: Producer | None = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        brokers = self._client.list_topics(timeout=_ANSWER_SECONDS).brokers.values()
        self.bootstrap_servers = ",".join(f"{one.host}:{one.port}" for one in brokers)

    def make_topics(self, names: Iterable[str]) -> None:
        """Makes topics. It can't be asked to, but makes what somebody asks about by name."""
        assert self._client is not None
        for name in names:
            self._client.list_topics(name, timeout=_ANSWER_SECONDS)

    def close(self) -> None:
        """Ends the broker, and forgets all that is in it."""
        self._client = None
