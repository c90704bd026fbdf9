"""What the sidecar counts of itself: by the fold's own counts, and by names that Prometheus' tools find right."""

from __future__ import annotations

import subprocess
from typing import Any, get_args

import msgspec
import pytest

from stream_metrics.core.fold import Fold
from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import DeadLetterReason
from stream_metrics.sidecar.self_metrics import SelfMetrics
from stream_metrics.testing import MemoryLog, close, sample
from support.programs import program


def _fed(metrics: SelfMetrics, *events: Any, batch: int) -> Fold:
    log = MemoryLog()
    for event in events:
        log.append(event)
    log.append(msgspec.msgpack.encode(sample(1, 1.0)))
    fold = Fold(FoldSettings(remember_steps=1), "t", 0)
    for start in range(0, len(log.records), batch):
        records = log.records[start : start + batch]
        fold.feed(records)
        metrics.take(len(records), fold.counts)
    return fold


def _value(metrics: SelfMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"stream_metrics_{name}", labels)


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_each_event_is_counted_by_its_type_whatever_becomes_of_it(batch: int) -> None:
    metrics = SelfMetrics()
    _fed(
        metrics,
        {"type": "samples", "run_id": "default", "step": 1, "samples": [{"reward": 1.0}] * 5},
        *[sample(1, 1.0)] * 3,
        sample(2, float("nan")),
        close(1),
        close(1),
        close(2),
        sample(3, 1.0),
        close(3),
        sample(1, 1.0),
        b"poison",
        None,
        {**close(4), "reason": "timeout", "seen_offset": 0},
        batch=batch,
    )
    found = {name: _value(metrics, "events_total", type=name) for name in ("sample", "samples", "close")}
    assert found == {"sample": 7, "samples": 1, "close": 5}
    assert _value(metrics, "records_total") == 15
    assert _value(metrics, "tombstones_total") == 1
    reasons = {name: _value(metrics, "dead_letters_total", reason=name) for name in get_args(DeadLetterReason)}
    assert reasons == {"undecodable": 1, "too_late": 2, "superseded": 0, "late": 0}


def test_what_was_taken_is_not_taken_again() -> None:
    metrics = SelfMetrics()
    fold = _fed(metrics, sample(1, 1.0), close(1), batch=10)
    metrics.take(0, fold.counts)
    assert _value(metrics, "results_total") == 1
    assert _value(metrics, "late_samples_total") == 1
    fold.take_corrections()
    metrics.take(0, fold.counts)
    assert _value(metrics, "corrections_total") == 1
    assert _value(metrics, "results_total") == 1


def test_two_trainers_under_one_run_id_are_counted_once_a_step() -> None:
    metrics = SelfMetrics()
    ends = [close(step, expected_samples=count) for step in (1, 2) for count in (5, 7, 9)]
    _fed(metrics, *ends, close(3, expected_samples=5), close(3, expected_samples=5), batch=3)
    assert _value(metrics, "disagreeing_markers_total") == 2


def test_every_series_is_there_before_anything_has_happened() -> None:
    """Else an alert on the growth of a counter never sees its first event."""
    metrics = SelfMetrics()
    for listed in metrics.listed:
        for value in listed.values or [None]:
            labels = {} if value is None else {listed.label: value}
            name = listed.name + ("_count" if listed.kind == "histogram" else "")
            assert metrics.registry.get_sample_value(name, labels) == 0, listed


def test_the_list_is_all_there_is() -> None:
    metrics = SelfMetrics()
    names = {family.name for family in metrics.registry.collect()}
    ours = {name for name in names if not name.startswith("process_")}
    assert ours == {listed.name.removesuffix("_total") for listed in metrics.listed}


def test_prometheus_finds_nothing_to_say_about_the_names() -> None:
    promtool = program("promtool", package="prometheus")
    said = subprocess.run(
        [promtool, "check", "metrics"], input=SelfMetrics().text(), capture_output=True, timeout=60, check=False
    )
    assert (said.returncode, said.stdout + said.stderr) == (0, b"")
