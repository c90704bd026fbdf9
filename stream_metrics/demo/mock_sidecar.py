"""`python -m stream_metrics` on the embedded broker: the same sidecar, but for questions that the mock doesn't answer.

It names a controller that doesn't exist, so that each question about rights, settings and the topic's id would be
waited for.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

from stream_metrics.sidecar import loop, topics
from stream_metrics.sidecar.input_topic import InputTopic


class NamelessTopic(InputTopic):
    """A topic without an id, as brokers before 2.8 have them."""

    def id(self) -> str:
        return ""

    def look(self, now: float) -> str:
        return ""


class MockTopics(topics.Topics):
    """Topics whose rights, settings and ids can't be asked for."""

    def input_topic(self) -> InputTopic:
        return NamelessTopic(self._make_admin, self._settings.input_topic)

    def _check_rights(self) -> None:
        pass

    def _config_of(self, topic: str) -> dict[str, str]:
        return {}


def _end_with_parent() -> None:
    """Stops this process when who started it is gone: the broker is gone with it, and would be waited for."""
    while sys.stdin.buffer.read(4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    loop.Topics = MockTopics  # type: ignore[attr-defined]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runpy.run_module("stream_metrics", run_name="__main__", alter_sys=True)
