"""Plain samples on their way to their windows: gathered as rows over many batches, sorted all at once.

A window whose turn comes is in no cache, and that costs microseconds, so it should come seldom and for many samples.
What the windows don't have yet has been counted, and nobody looks at a window before it has it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from stream_metrics.core.packed import integers
from stream_metrics.core.plain import ROW_BYTES, Rows, ids_of, rows_of
from stream_metrics.core.record import Record
from stream_metrics.core.track import Track
from stream_metrics.core.window import Window
from stream_metrics.events import Event, Identifier, Sample

_MAX_QUICK: Final = 2**16
"""So many numbers, of 16 bits, numpy sorts digit by digit."""


FindWindow = Callable[[Event], tuple[Track, Window] | None]
"""Returns the window that an event is for, None where that isn't there and open."""


class Lanes:
    """Plain samples of records that were fed, each one of an open window."""

    def __init__(self) -> None:
        self._lanes: list[tuple[Track, Window]] = []
        self._by_window: dict[int, int] = {}
        self._by_run: dict[Hashable, dict[Hashable, int]] = {}
        self._rows: list[Rows] = []
        self._numbers: list[int] = []  # of the lane of each sample
        self._sample_ids: list[set[Identifier]] = []  # of the window of each lane
        self._last: dict[int, Record] = {}

    def __len__(self) -> int:
        """The samples it has."""
        return len(self._numbers)

    def forget(self) -> None:
        """Knows no window any more, since one may not be open now. There may be no samples."""
        self._lanes.clear()
        self._sample_ids.clear()
        self._by_window.clear()
        self._by_run.clear()

    def take(self, samples: Sequence[Sample], records: Sequence[Record], find: FindWindow) -> int | None:
        """Takes the samples of these records up to the first whose window isn't there and open.

        Returns:
            How many; None, and takes none, where one of these isn't plain, or a duplicate.
        """
        numbers = self._numbers_of(samples, find)
        if numbers:
            if len(numbers) < len(samples):
                samples = samples[: len(numbers)]
            rows = rows_of(samples)
            if rows is None:
                return None
            ids = ids_of(samples)
            if ids is not None and not self._are_new(numbers, ids):
                return None
            self._numbers += numbers
            self._rows.append(rows)
            self._last.update(zip(numbers, records, strict=False))
        return len(numbers)

    def drain(self) -> Iterator[tuple[tuple[Track, Window], memoryview, Record]]:
        """Yields the samples by their windows, in the order of the log, and has none any more.

        Yields:
            The window, the bytes of its `Rows`, and the record of the last one.
        """
        if not self._numbers:
            return
        rows = np.concatenate(self._rows)
        lanes = np.array(integers(self._numbers, "H" if len(self._lanes) <= _MAX_QUICK else "i"))
        last, self._last = self._last, {}
        self._rows.clear()
        self._numbers.clear()
        order = np.argsort(lanes, kind="stable")
        lanes = lanes[order]
        data = memoryview(rows.take(order, axis=0).data).cast("B")
        ends = np.flatnonzero(np.append(lanes[1:] != lanes[:-1], True)) + 1
        start = 0
        for number, end in zip(lanes[ends - 1].tolist(), (ends * ROW_BYTES).tolist(), strict=True):
            yield self._lanes[number], data[start:end], last[number]
            start = end

    def _are_new(self, numbers: Sequence[int], ids: Sequence[Identifier | None]) -> bool:
        """Notes the ids in the windows, or none of them where one is a duplicate."""
        sets = self._sample_ids
        for place, (number, sample_id) in enumerate(zip(numbers, ids, strict=True)):
            if sample_id is None:
                continue
            seen = sets[number]
            if sample_id in seen:
                for number, sample_id in zip(numbers[:place], ids, strict=False):
                    if sample_id is not None:
                        sets[number].remove(sample_id)
                return False
            seen.add(sample_id)
        return True

    def _numbers_of(self, samples: Sequence[Sample], find: FindWindow) -> list[int]:
        """Returns the lane of each sample up to the first that has none."""
        first = samples[0]
        run_id, scope, attempt = run = first.run_id, first.scope, first.attempt
        names: list[Hashable]
        for sample in samples:  # `any` over a generator takes twice as long
            if sample.run_id != run_id or sample.attempt != attempt or sample.scope != scope:
                names = [(one.run_id, one.scope, one.attempt, one.step) for one in samples]
                lanes = self._by_run.setdefault(None, {})
                break
        else:
            names = [sample.step for sample in samples]
            lanes = self._by_run.setdefault(run, {})
        with suppress(KeyError):
            return [lanes[name] for name in names]
        for place, (name, sample) in enumerate(zip(names, samples, strict=True)):
            if name not in lanes and not self._name_lane(lanes, name, find(sample)):
                del names[place:]
                break
        return [lanes[name] for name in names]

    def _name_lane(self, lanes: dict[Hashable, int], name: Hashable, found: tuple[Track, Window] | None) -> bool:
        if found is None:
            return False
        # A window has several names: null stands for what is absent.
        number = lanes[name] = self._by_window.setdefault(found[1].first_offset, len(self._lanes))
        if number == len(self._lanes):
            self._lanes.append(found)
            self._sample_ids.append(found[1].sample_ids)
        return True
