"""The metric catalogue: each metric is a function of a `StepView`, listed at the end of its module in `core.metrics`.

- A key appears when the events hold what it needs.
- No number is ever NaN or infinite: what isn't finite isn't published, and counted.
- Numbers that no order of samples can change are made by `core.exact`.
- Names from producers are bounded by `core.named`, and never take the place of a metric of the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from stream_metrics.core.metrics import counts, custom, groups, lengths, rewards
from stream_metrics.core.metrics.metric import Metric, Number, Value
from stream_metrics.core.settings import FoldSettings
from stream_metrics.core.view import StepView
from stream_metrics.core.window import Window
from stream_metrics.events import MAX_INTEGER

METRICS: Final[tuple[Metric, ...]] = (
    *rewards.METRICS,
    *counts.METRICS,
    *groups.METRICS,
    *lengths.METRICS,
    *custom.METRICS,
)


class Outcome(NamedTuple):
    """What became of the metrics of one window."""

    step: int
    nonfinite: int
    clashing: int


def step(outcome: Outcome) -> int:
    """The step.

    Formula: step.
    Unit: steps.
    Cost: O(1).
    Source: `rollout/step` in miles and slime.
    """
    return outcome.step


def nonfinite_metrics(outcome: Outcome) -> int | None:
    """Metrics left out of this result because they aren't finite.

    Formula: |{metric : not a finite number}|.
    Unit: metrics.
    Cost: O(metrics).
    Source: own.
    Appears: where it isn't 0.
    """
    return outcome.nonfinite or None


def clashing_names(outcome: Outcome) -> int | None:
    """Metrics left out of this result because a producer named a value as this catalogue names a metric.

    Formula: |{name of a value : taken}|.
    Unit: metrics.
    Cost: O(metrics).
    Source: own.
    Appears: where it isn't 0.
    """
    return outcome.clashing or None


OUTCOMES: Final = {"step": step, "nonfinite_metrics": nonfinite_metrics, "clashing_names": clashing_names}
"""Of the result itself, worked out last."""

_OWN_NAMES: Final = frozenset({metric.key for metric in METRICS if "<" not in metric.key} | OUTCOMES.keys())
_OWN_PREFIXES: Final = tuple(
    metric.key.partition("<")[0] for metric in METRICS if "<" in metric.key and not metric.is_named_by_producers
)


class Ahead(NamedTuple):
    """What is worked out of an open window's samples before its close.

    Attributes:
        num_samples: How many it had: with more of them, nothing here holds.
        num_folded: As in `StepView`.
        values: What the metrics that are of samples alone return, by their keys.
    """

    num_samples: int
    num_folded: int
    values: Mapping[str, Value]


def work_ahead(window: Window, settings: FoldSettings) -> Ahead:
    """Returns all that `step_metrics` would work out of the samples that there are."""
    view = StepView(window, settings)
    values = {metric.key: metric.function(view) for metric in METRICS if metric.is_of_samples}
    return Ahead(view.num_samples, view.num_folded, values)


def step_metrics(window: Window, settings: FoldSettings, ahead: Ahead | None = None) -> dict[str, Number]:
    """Returns the window's metrics under their published names.

    What was worked out ahead is taken where the window's samples are still those. It changes how long this takes, and
    nothing else.
    """
    view = StepView(window, settings)
    known: Mapping[str, Value] = {}
    if ahead is not None and ahead.num_samples == view.num_samples:
        known, view.num_folded = ahead.values, ahead.num_folded
    made: dict[str, Number] = {}
    nonfinite = clashing = 0
    for metric in METRICS:
        value = known[metric.key] if metric.key in known else metric.function(view)
        if value is None:
            continue
        for name, number in value.items() if isinstance(value, Mapping) else ((metric.key, value),):
            if metric.is_named_by_producers and (name in made or _is_own(name)):
                clashing += 1
            elif not math.isfinite(number):
                nonfinite += 1
            else:
                made[name] = number
    outcome = Outcome(window.step, nonfinite, clashing)
    for name, of_outcome in OUTCOMES.items():
        last = of_outcome(outcome)
        if last is not None:
            made[name] = last
    return {f"{window.scope}/{name}": _readable(number) for name, number in made.items()}


def _is_own(name: str) -> bool:
    return name in _OWN_NAMES or name.startswith(_OWN_PREFIXES)


def _readable(number: Number) -> Number:
    """Returns an integer that not every reader holds exactly as a float."""
    return number if isinstance(number, float) or -MAX_INTEGER <= number <= MAX_INTEGER else float(number)
