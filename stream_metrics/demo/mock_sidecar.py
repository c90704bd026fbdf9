"""`python -m stream_metrics` on the embedded broker: the same sidecar, but for questions that the mock doesn't answer.

It names a controller that doesn't exist, so that each question about rights and settings would be waited for.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

from stream_metrics.sidecar import loop, topics


class MockTopics(topics.Topics):
    """Topics whose rights and settings can't be asked for."""

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
