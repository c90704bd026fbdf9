"""Metrics worked out before the close: quicker, and never any other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stream_metrics.core import catalogue
from stream_metrics.core.catalogue import METRICS, Ahead
from stream_metrics.core.effects import Publish
from stream_metrics.core.fold import _MAX_AHEAD, _WORTH_WORKING_AHEAD, Fold
from stream_metrics.core.settings import FoldSettings
from stream_metrics.core.view import StepView
from stream_metrics.events import Sample, StepMetrics, decode, encode
from stream_metrics.testing import MemoryLog, close, sample
from support.windows import window_of

SETTINGS = FoldSettings(max_names=2)


def samples(count: int, step: int = 1, first: int = 0) -> Iterator[dict[str, Any]]:
    for number in range(first, first + count):
        yield sample(
            step,
            number % 7 / 4,
            group_index=number // 8,
            rollout_id=number // 3,
            sample_id=number,
            response_length=number % 50,
            status="truncated" if number % 5 == 0 else "completed",
            weight_versions=[number // 100],
            data_source=f"s{number % 4}",
            values={f"v{number % 4}": number},
        )


def decoded(count: int) -> list[Sample]:
    log = MemoryLog()
    made = [decode(log.append(one).value() or b"") for one in samples(count)]
    return [one for one in made if isinstance(one, Sample)]


class Twins:
    """Two folds of one log, of which one works ahead where it is told to."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.plain, self.ahead = (Fold(SETTINGS, self.log.topic, 0) for _ in range(2))

    def feed(self, *events: dict[str, Any]) -> None:
        records = [self.log.append(event) for event in events]
        self.plain.feed(records)
        self.ahead.feed(records)

    def results(self) -> list[StepMetrics]:
        """Returns what both publish, which must be the same to the byte."""
        made = []
        for fold in (self.plain, self.ahead):
            effects = fold.take_effects() + fold.take_corrections()
            made.append([encode(effect.result) for effect in effects if isinstance(effect, Publish)])
            results = [effect.result for effect in effects if isinstance(effect, Publish)]
        assert made[0] == made[1]
        return results


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the metrics that have been worked out since it was emptied, but for those that cost nothing."""
    names: list[str] = []

    def noted(metric: Any) -> Any:
        def function(view: StepView) -> Any:
            names.append(metric.key)
            return metric.function(view)

        return metric._replace(function=function) if metric.is_of_samples else metric

    monkeypatch.setattr(catalogue, "METRICS", tuple(map(noted, METRICS)))
    return names


def test_a_close_works_out_no_more_what_was_worked_out_before(worked_out):
    twins = Twins()
    twins.feed(*samples(300))
    assert twins.ahead.work_ahead()
    assert worked_out
    assert not twins.ahead.work_ahead()  # nothing has changed
    twins.feed(close(1, dropped={"a": 1, "b": 2, "c": 3}), *samples(2, step=2))
    worked_out.clear()
    for effect in twins.ahead.take_effects():
        assert isinstance(effect, Publish)
        effect.finish()
    assert worked_out == []


def test_it_publishes_the_same_bytes(worked_out):
    twins = Twins()
    twins.feed(*samples(300))
    twins.ahead.work_ahead()
    twins.feed(*samples(9))  # duplicates, counted though no sample is new
    twins.feed(close(1, dropped={"a": 1, "b": 2, "c": 3}))
    [result] = twins.results()
    metrics = result.metrics
    assert metrics["rollout/duplicate_samples"] == 9
    assert metrics["rollout/dropped_total"] == 6
    assert metrics["rollout/folded_names"] > 1


@pytest.mark.parametrize("more", [1, 300])
def test_samples_that_come_after_it_are_counted_in(more):
    twins = Twins()
    twins.feed(*samples(300))
    twins.ahead.work_ahead()
    twins.feed(*samples(more, first=300), close(1))
    [result] = twins.results()
    assert result.metrics["rollout/num_training_samples"] == 300 + more


def test_a_correction_is_of_all_samples():
    twins = Twins()
    twins.feed(*samples(300))
    twins.ahead.work_ahead()
    twins.feed(close(1), *samples(1, first=300))
    assert [result.metrics["rollout/num_training_samples"] for result in twins.results()] == [300, 301]


def test_steps_of_few_samples_are_left_to_their_close():
    twins = Twins()
    twins.feed(*samples(_WORTH_WORKING_AHEAD - 1))
    assert not twins.ahead.work_ahead()
    twins.feed(*samples(1, first=_WORTH_WORKING_AHEAD))
    assert twins.ahead.work_ahead()


def test_no_more_of_it_is_kept_than_is_of_use(monkeypatch):
    monkeypatch.setattr("stream_metrics.core.fold._WORTH_WORKING_AHEAD", 1)
    twins = Twins()
    fold = twins.ahead
    for step in range(_MAX_AHEAD + 5):
        twins.feed(*samples(1, step=step))
        while fold.work_ahead():
            pass
    assert len(fold._ahead) == _MAX_AHEAD
    twins.feed(*(close(step) for step in range(_MAX_AHEAD + 5)))
    assert len(twins.results()) == _MAX_AHEAD + 5
    assert fold._ahead == {}


@pytest.mark.parametrize("metric", [one for one in METRICS if one.is_of_samples], ids=lambda one: one.key)
def test_what_is_called_of_samples_alone_looks_at_nothing_else(metric):
    class Unseen:
        def __getattr__(self, name: str) -> None:
            raise AssertionError(f"looks at the window's {name}")

    view = StepView(window_of(decoded(300), SETTINGS), SETTINGS)
    view.window = Unseen()  # type: ignore[assignment]
    metric.function(view)


def test_what_is_worked_out_ahead_holds_no_samples():
    """A number or some a metric: sixty-four open steps shall not take what their samples take once more."""
    window = window_of(decoded(5_000), SETTINGS)
    made = catalogue.work_ahead(window, SETTINGS)
    assert isinstance(made, Ahead)
    numbers = sum(len(value) if isinstance(value, dict) else 1 for value in made.values.values())
    assert numbers < 200
