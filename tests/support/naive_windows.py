"""The life of steps as the design tells it, in the plainest way: lists, no columns, no batches, no floors.

An oracle for `core.fold`; shares nothing with it but the decoder, and takes the metrics from `naive`. It leaves out
what bounds memory (eviction, forgetting by offsets), so its logs must stay below those bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import EventError, Sample, SampleBatch, StepClose, decode
from support.naive import naive_metrics, published


@dataclass
class Step:
    run: tuple[str, str]
    attempt: int
    step: int
    samples: list[Any] = field(default_factory=list)
    markers: dict[str, StepClose] = field(default_factory=dict)
    seen_ids: set[Any] = field(default_factory=set)
    duplicates: int = 0
    duplicates_since_change: int = 0
    late: int = 0
    closed_by: str | None = None
    newest: int = -1
    correction: dict[str, Any] | None = None

    def condition_holds(self) -> bool:
        if not self.markers or self.closed_by == "data_lost":
            return False
        producers = max(marker.producers or 1 for marker in self.markers.values())
        expected = [marker.expected_samples for marker in self.markers.values()]
        enough = None in expected or len(self.samples) >= sum(expected)
        return len(self.markers) >= producers and enough

    def result(self, settings: FoldSettings) -> dict[str, Any]:
        return {
            "run_id": self.run[0],
            "scope": self.run[1],
            "attempt": self.attempt,
            "step": self.step,
            "complete": self.condition_holds() and self.closed_by not in ("superseded", "data_lost"),
            "reason": self.closed_by,
            "late_samples": self.late,
            **self.metrics(settings),
        }

    def metrics(self, settings: FoldSettings) -> dict[str, Any]:
        dropped: dict[str, int] = {}
        for marker in self.markers.values():
            for reason, count in (marker.dropped or {}).items():
                dropped[reason] = dropped.get(reason, 0) + (count or 0)
        return published(
            naive_metrics(self.samples, settings, step=self.step, dropped=dropped, duplicates=self.duplicates)
        )


@dataclass
class Told:
    on_time: list[dict[str, Any]] = field(default_factory=list)
    corrections: dict[Any, dict[str, Any]] = field(default_factory=dict)
    dead_letters: list[tuple[int, str]] = field(default_factory=list)


def tell(records: list[Any], settings: FoldSettings) -> Told:
    """Returns what must be published of a log, corrections as the last of each step."""
    told = Told()
    live: dict[tuple[str, str], int] = {}
    steps: dict[tuple[str, str], dict[int, Step]] = {}
    forgotten: dict[tuple[str, str], int] = {}

    def close(step: Step, reason: str) -> None:
        step.closed_by = reason
        told.on_time.append(step.result(settings))

    def change(step: Step) -> None:
        step.duplicates += step.duplicates_since_change
        step.duplicates_since_change = 0
        told.corrections[step.run, step.attempt, step.step] = step.result(settings)

    for record in records:
        if record.value() is None:
            continue
        offset = record.offset()
        try:
            event = decode(record.value())
        except EventError:
            told.dead_letters.append((offset, "undecodable"))
            continue
        run = (event.run_id or "default", event.scope or "rollout")
        attempt = event.attempt or 0
        mine = steps.setdefault(run, {})
        if isinstance(event, StepClose) and event.reason in ("timeout", "data_lost"):
            step = mine.get(event.step)
            if attempt == live.get(run) and step is not None and step.closed_by is None:
                if event.seen_offset is None or step.newest <= event.seen_offset:
                    close(step, event.reason)
                    _forget(mine, forgotten, run, settings)
            continue
        live.setdefault(run, attempt)
        if attempt < live[run]:
            told.dead_letters.append((offset, "superseded"))
            continue
        if attempt > live[run]:
            for number in sorted(mine):
                if mine[number].closed_by is None:
                    close(mine[number], "superseded")
            mine.clear()
            forgotten.pop(run, None)
            live[run] = attempt
        if event.step <= forgotten.get(run, -1):
            told.dead_letters.append((offset, "too_late"))
            continue
        step = mine.setdefault(event.step, Step(run, attempt, event.step))
        step.newest = offset
        if isinstance(event, StepClose):
            name = event.producer or ""
            was_complete = step.condition_holds()
            if name not in step.markers and not (step.closed_by is not None and was_complete):
                step.markers[name] = event
                if step.closed_by is not None and (step.condition_holds() or event.dropped):
                    change(step)
        else:
            items = event.samples if isinstance(event, SampleBatch) else [event]
            assert isinstance(event, (Sample, SampleBatch))
            new = _without_duplicates(items, step.seen_ids)
            if step.closed_by is not None and settings.late == "dead_letter" and new:
                told.dead_letters.append((offset, "late"))
                continue
            step.seen_ids |= {item.sample_id for item in new if item.sample_id is not None}
            step.samples += new
            step.duplicates_since_change += len(items) - len(new)
            if step.closed_by is None:
                step.duplicates += step.duplicates_since_change
                step.duplicates_since_change = 0
            elif new:
                step.late += len(new)
                change(step)
        if step.closed_by is None and step.condition_holds():
            close(step, "closed")
            _forget(mine, forgotten, run, settings)
    return told


def _without_duplicates(items: list[Any], seen: set[Any]) -> list[Any]:
    new, here = [], set(seen)
    for item in items:
        if item.sample_id is None or item.sample_id not in here:
            new.append(item)
            here.add(item.sample_id)
    return new


def _forget(
    mine: dict[int, Step], forgotten: dict[tuple[str, str], int], run: tuple[str, str], settings: FoldSettings
) -> None:
    while mine:
        lowest = min(mine)
        higher_closed = sum(step.closed_by is not None for number, step in mine.items() if number > lowest)
        if mine[lowest].closed_by is None or higher_closed < settings.remember_steps:
            return
        forgotten[run] = lowest
        del mine[lowest]
