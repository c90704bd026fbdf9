"""The compiled part against the decoder: what it reads of a value, and what it should have."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from stream_metrics.core import compiled
from stream_metrics.core.rows import FULL, Rows, one_of, rows_of
from stream_metrics.events import DEFAULT_RUN_ID, DEFAULT_SCOPE, EventError, Sample, SampleBatch, decode
from support.programs import MISSING

needs_compiled = pytest.mark.skipif(
    not compiled.IS_THERE,
    reason=f"{MISSING}Rust 1.85 or newer, when this was installed (get it, then make clean): no compiled part",
)


class Read(NamedTuple):
    """What is known of the samples of a value: nine numbers for each, all bits of them, and their ids."""

    name: tuple[str, str, int, int]
    rows: bytes
    ids: list[Any]
    num_batches: int


def read(value: bytes) -> Read | None:
    """Returns what the compiled part reads, or None where it leaves the value to the decoder."""
    names = []

    def find(run_id: str | None, scope: str | None, attempt: int, step: int) -> int:
        names.append((run_id, scope, attempt, step))
        return 0

    stretch = compiled.Reader().read([value], 0, find)
    if not stretch.num_values:
        assert not len(stretch.rows)
        assert not names
        return None
    [(run_id, scope, attempt, step)] = names
    assert stretch.last == [(0, 0)]
    assert stretch.lanes.tolist() == [0] * len(stretch.rows)
    name = (
        DEFAULT_RUN_ID if run_id is None else run_id,
        DEFAULT_SCOPE if scope is None else scope,
        attempt,
        step,
    )
    ids = stretch.ids or [None] * len(stretch.rows)
    return Read(name, full(stretch.rows), ids, stretch.num_batches)


def decoded(value: bytes) -> Read | None:
    """Returns the same of what the decoder makes of the value, or None where it isn't samples, or not in numbers."""
    try:
        event = decode(value)
    except EventError:
        return None
    if not isinstance(event, Sample | SampleBatch):
        return None
    samples = event.samples if isinstance(event, SampleBatch) else [event]
    rows = rows_of(samples) if samples else None
    if rows is None:
        return None
    return Read(
        (
            DEFAULT_RUN_ID if event.run_id is None else event.run_id,
            DEFAULT_SCOPE if event.scope is None else event.scope,
            event.attempt or 0,
            event.step,
        ),
        full(rows),
        [one.sample_id for one in samples],
        int(isinstance(event, SampleBatch)),
    )


def full(rows: Rows) -> bytes:
    """Returns the bytes of rows as if one of them weren't plain."""
    return one_of([rows, np.empty((0, FULL), dtype=np.int64)]).tobytes()
