"""What tests of the sidecar's parts share."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from stream_metrics.sidecar import logs


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """What the log has said in this test."""
    logger = logs.LOGGER
    before = logger.handlers[:], logger.level, logger.propagate
    stream = io.StringIO()
    logs.setup("text", "info", stream)
    yield stream
    logger.handlers[:], logger.level, logger.propagate = before
