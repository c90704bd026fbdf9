"""Numbers under names that a producer chose; under `other` are those of all names that found no place of their own."""

from __future__ import annotations

from typing import Final

import numpy as np

from stream_metrics.core.exact import Ints, exact_mean, exact_means
from stream_metrics.core.metrics.metric import Metric, Number
from stream_metrics.core.named import OTHER, NamedNumbers, Observations
from stream_metrics.core.view import StepView, ints


def _by_rollout(view: StepView, name: str, observations: Observations) -> float:
    values = np.array(observations.value)
    if name != OTHER and len(values) == view.num_samples:  # all samples have it, once each
        return exact_mean(exact_means(values, view.rollout, view.num_rollouts, counts=view.samples_per_rollout))
    numbers, count = _renumbered(view, ints(observations.samples()))
    return exact_mean(exact_means(values, numbers, count))


def _renumbered(view: StepView, samples: Ints) -> tuple[Ints, int]:
    """Returns the rollouts of some samples, numbered from 0, and how many these are."""
    rollout = view.rollout[samples]
    if len(rollout) < view.num_rollouts // 16:
        rollouts, numbers = np.unique(rollout, return_inverse=True)
        return numbers, len(rollouts)
    is_there = np.zeros(view.num_rollouts, dtype=np.bool_)
    is_there[rollout] = True
    return (np.cumsum(is_there) - 1)[rollout], int(np.count_nonzero(is_there))


def value_by_sample(view: StepView) -> dict[str, float]:
    """A number of `values`, one vote a sample that carries it.

    Formula: mean over samples s with values[name] of that.
    Unit: the producer's.
    Cost: O(values).
    Source: own; prefix-cache hits, accept rates, tool calls, turns and non-generation time travel so.
    Appears: with such a value. Where this catalogue has the name, it is left out (`clashing_names`).
    """
    values = view.columns.values or NamedNumbers(0)
    return {name: exact_mean(np.array(observations.value)) for name, observations in values.items()}


def value_by_rollout(view: StepView) -> dict[str, float]:
    """A number of `values`, one vote a rollout that carries it.

    Formula: mean over rollouts r of (mean over samples s of r with values[name] of that).
    Unit: the producer's.
    Cost: O(values).
    Source: own.
    Appears: with such a value. Where the name is taken, it is left out (`clashing_names`).
    """
    values = view.columns.values or NamedNumbers(0)
    return {f"episode_{name}": _by_rollout(view, name, observations) for name, observations in values.items()}


def reward_component(view: StepView) -> dict[str, float]:
    """A component of reward objects, one vote a rollout that has it.

    Formula: mean over rollouts r of (mean over samples s of r with a finite number reward[component] of that).
    Unit: reward.
    Cost: O(components).
    Source: own.
    Appears: with a reward object that has the component.
    """
    components = view.columns.components or NamedNumbers(0)
    return {f"reward/{name}": _by_rollout(view, name, observations) for name, observations in components.items()}


def by_data_source(view: StepView) -> dict[str, Number]:
    """`episode_raw_reward`, `num_training_samples` and `num_rollouts` of the samples of one data source only.

    Formula: those of the metrics of these names.
    Unit: theirs.
    Cost: O(samples), about 100 ns each.
    Source: own.
    Appears: with a data source.
    """
    made: dict[str, Number] = {}
    if view.columns.sources is None:
        return made
    is_usable = np.isfinite(view.rewards)
    for name, samples in view.columns.sources.items():
        numbers, count = _renumbered(view, samples)
        usable = is_usable[samples]
        rewards = view.rewards_of(samples[usable], numbers[usable], count)
        made[f"by_data_source/{name}/episode_raw_reward"] = exact_mean(rewards[np.isfinite(rewards)])
        made[f"by_data_source/{name}/num_training_samples"] = len(samples)
        made[f"by_data_source/{name}/num_rollouts"] = count
    return made


METRICS: Final = (
    Metric("reward/<component>", reward_component),
    Metric("by_data_source/<data_source>/<metric>", by_data_source),
    Metric("<name>", value_by_sample),
    Metric("episode_<name>", value_by_rollout),
)
