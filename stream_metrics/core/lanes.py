"""Samples on their way to their windows: gathered as rows over many batches, sorted all at once.

A window whose turn comes is in no cache, and that costs microseconds, so it should come seldom and for many samples.
What the windows don't have yet has been counted, and nobody looks at a window before it has it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from stream_metrics.core import compiled
from stream_metrics.core.packed import integers
from stream_metrics.core.record import Record
from stream_metrics.core.rows import Rows, ids_of, note_if_new, one_of, rows_of
from stream_metrics.core.track import Track
from stream_metrics.core.window import Window
from stream_metrics.events import Identifier, Sample

_MAX_QUICK: Final = 2**16
"""So many numbers, of 16 bits, numpy sorts digit by digit."""


WindowName = tuple[str | None, str | None, int | None, int]
"""Run, scope, attempt and step as an event has them: a window has several names, since null stands for the default."""

FindWindow = Callable[[WindowName], tuple[Track, Window] | None]
"""Returns the window of that name, None where it isn't there and open."""


class Lanes:
    """Samples of records that were fed, each one of an open window.

    Args:
        is_compiled: Whether it reads records by the compiled part, if that is there.
    """

    def __init__(self, *, is_compiled: bool) -> None:
        self._reader = compiled.Reader() if is_compiled and compiled.IS_THERE else None
        self._lanes: list[tuple[Track, Window]] = []
        self._by_window: dict[int, int] = {}
        self._by_run: dict[Hashable, dict[Hashable, int]] = {}
        self._rows: list[Rows] = []
        self._numbers: list[npt.NDArray[np.int32]] = []  # of the lane of each sample
        self._num_samples = 0
        self._sample_ids: list[set[Identifier]] = []  # of the window of each lane
        self._last: dict[int, Record] = {}

    def __len__(self) -> int:
        """The samples it has."""
        return self._num_samples

    @property
    def can_read(self) -> bool:
        """Whether `read` is there."""
        return self._reader is not None

    @property
    def num_windows(self) -> int:
        """The windows that it knows."""
        return len(self._lanes)

    def forget(self) -> None:
        """Knows no window any more, since one may not be open now. There may be no samples."""
        self._lanes.clear()
        self._sample_ids.clear()
        self._by_window.clear()
        self._by_run.clear()
        if self._reader is not None:
            self._reader.forget()

    def read(self, values: list[bytes | None], begin: int, find: FindWindow) -> compiled.Stretch:
        """Reads samples up to the first that is left to the decoder, or whose window isn't there and open."""
        assert self._reader is not None
        return self._reader.read(values, begin, lambda *name: self._lane_of(find(name)))

    def take_read(self, stretch: compiled.Stretch, records: Sequence[Record]) -> bool:
        """Takes samples of these records as they were read; takes none, and returns False, where one is a duplicate."""
        if stretch.ids is not None and not self._are_new(stretch.lanes.tolist(), stretch.ids):
            return False
        self._add(stretch.rows, stretch.lanes)
        for number, place in stretch.last:
            self._last[number] = records[place]
        return True

    def take(self, samples: Sequence[Sample], records: Sequence[Record], find: FindWindow) -> int | None:
        """Takes the samples of these records up to the first whose window isn't there and open.

        Returns:
            How many; None, and takes none, where numbers don't say all of one of these, or one is a duplicate.
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
            self._add(rows, np.frombuffer(integers(numbers, "i"), dtype=np.int32))
            self._last.update(zip(numbers, records, strict=False))
        return len(numbers)

    def drain(self) -> Iterator[tuple[tuple[Track, Window], memoryview, int, Record]]:
        """Yields the samples by their windows, in the order of the log, and has none any more.

        Yields:
            The window, the bytes of its `Rows`, the numbers of a row, and the record of the last one.
        """
        if not self._num_samples:
            return
        rows = one_of(self._rows)
        lanes = np.concatenate(self._numbers)
        last, self._last = self._last, {}
        self._rows.clear()
        self._numbers.clear()
        self._num_samples = 0
        if len(last) > 1:
            order = np.argsort(lanes.astype(np.uint16) if len(self._lanes) <= _MAX_QUICK else lanes, kind="stable")
            lanes = lanes[order]
            rows = rows.take(order, axis=0)
        cells = rows.shape[1]
        data = memoryview(rows.data).cast("B")
        ends = np.flatnonzero(np.append(lanes[1:] != lanes[:-1], True)) + 1
        start = 0
        for number, end in zip(lanes[ends - 1].tolist(), (ends * (cells * 8)).tolist(), strict=True):
            yield self._lanes[number], data[start:end], cells, last[number]
            start = end

    def _add(self, rows: Rows, numbers: npt.NDArray[np.int32]) -> None:
        self._rows.append(rows)
        self._numbers.append(numbers)
        self._num_samples += len(rows)

    def _are_new(self, numbers: list[int], ids: Sequence[Identifier | None]) -> bool:
        """Notes the ids in the windows, or none of them where one is a duplicate."""
        sets = self._sample_ids
        if numbers.count(numbers[0]) == len(numbers):
            return note_if_new(ids, sets[numbers[0]])
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
            if name not in lanes:
                lane = self._lane_of(find((sample.run_id, sample.scope, sample.attempt, sample.step)))
                if lane is None:
                    del names[place:]
                    break
                lanes[name] = lane
        return [lanes[name] for name in names]

    def _lane_of(self, found: tuple[Track, Window] | None) -> int | None:
        """Returns the number of a window's lane, which it makes where there is none."""
        if found is None:
            return None
        number = self._by_window.setdefault(found[1].first_offset, len(self._lanes))
        if number == len(self._lanes):
            self._lanes.append(found)
            self._sample_ids.append(found[1].sample_ids)
        return number
