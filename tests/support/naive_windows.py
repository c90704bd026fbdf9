"""The life of steps as the design tells it, in the plainest way: lists, no columns, no batches, no floors.

An oracle for `core.fold`; shares nothing with it but the decoder. It leaves out what bounds memory (eviction,
forgetting by offsets), so its logs must stay below those bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import EventError, Sample, SampleBatch, StepClose, decode


@dataclass
class Step:
    run: tuple[str, str]
    attempt: int
    step: int
    samples: list[tuple[Any, tuple[int, int]]] = field(default_factory=list)
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
            **metrics_of([sample for sample, _ in self.samples], [place for _, place in self.samples], settings),
            "duplicate_samples": self.duplicates,
        }


def metrics_of(samples: list[Any], places: list[tuple[int, int]], settings: FoldSettings) -> dict[str, Any]:
    """The definition of the two metrics and the data-quality counts, word by word."""
    carrying = [sample for sample in samples if sample.position is not None]
    first = min(carrying, key=lambda one: one.position) if carrying else (samples[0] if samples else None)
    uses_metadata = first is not None and _raw(first) is not None
    rollouts: dict[Any, list[float]] = {}
    groups = set()
    missing = nonfinite = 0
    usable = []
    for sample, place in zip(samples, places, strict=True):
        group = ("group", type(sample.group_index).__name__, sample.group_index)
        groups.add(group)
        if sample.rollout_id is not None:
            key: Any = ("rollout", group, type(sample.rollout_id).__name__, sample.rollout_id)
        elif sample.index is not None:
            key = ("sample", group, sample.index)
        else:
            key = ("position", group, place)
        values = rollouts.setdefault(key, [])
        reward = _raw(sample) if uses_metadata else sample.reward
        if isinstance(reward, dict) and not uses_metadata:
            reward = reward.get(settings.reward_key) if settings.reward_key is not None else None
        if not isinstance(reward, (int, float)):
            missing += 1
        elif not math.isfinite(reward):
            nonfinite += 1
        else:
            values.append(float(reward))
            usable.append(float(reward))
    means = [_mean(values) for values in rollouts.values() if values]
    having = sum(_raw(sample) is not None for sample in samples)
    return {
        "num_training_samples": len(samples),
        "num_rollouts": len(rollouts),
        "num_groups": len(groups),
        "episode_raw_reward": _mean(means),
        "raw_reward": _mean(usable),
        "missing_rewards": missing,
        "nonfinite_rewards": nonfinite,
        "mixed_reward_sources": int(0 < having < len(samples)),
    }


def _raw(sample: Any) -> Any:
    return None if sample.metadata is None else sample.metadata.raw_reward


def _mean(values: list[float]) -> float:
    return float(sum(map(Fraction, values)) / len(values)) if values else 0.0


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
            numbered = {id(item): place for place, item in enumerate(items)}
            step.samples += [(item, (offset, numbered[id(item)])) for item in new]
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
