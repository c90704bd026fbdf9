"""The metrics of a list of samples in one call: for a notebook, or a test in a trainer's repository. No broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stream_metrics import events
from stream_metrics.core.catalogue import step_metrics
from stream_metrics.core.settings import FoldSettings, RolloutReward
from stream_metrics.core.window import Window
from stream_metrics.producers.encoding import UnencodableSampleError, encode_fields, sample_fields, step_number

_DEFAULT = FoldSettings()


def aggregate(
    samples: Iterable[Any],
    *,
    step: int = 0,
    scope: str = events.DEFAULT_SCOPE,
    reward_key: str | None = _DEFAULT.reward_key,
    rollout_reward: RolloutReward = _DEFAULT.rollout_reward,
    pass_threshold: float = _DEFAULT.pass_threshold,
    max_names: int = _DEFAULT.max_names,
) -> dict[str, int | float]:
    """Returns the metrics that the sidecar would publish for a step of these samples, to the last bit.

        >>> aggregate([{"rollout_id": 1, "reward": 1.0}, {"reward": 0.0}])["rollout/episode_raw_reward"]
        0.5

    Args:
        samples: Mappings, or objects with the contract's names as attributes, as producers take them. One without
            `position` has its place in the list; one whose `sample_id` came before is dropped and counted.
        step: The step, for `<scope>/step`.
        scope: Prefix of the metrics' names.
        reward_key: Component to read where a reward is an object.
        rollout_reward: Rule that makes one reward of a rollout's samples: mean, sum, last, first or max.
        pass_threshold: Rollout reward from which a rollout passes.
        max_names: Names of one kind in the result; the rest become `other`.

    Raises:
        ValueError: A sample can't travel, with its place and field, or a setting isn't allowed.
    """
    settings = msgspec.convert(
        {
            "reward_key": reward_key,
            "rollout_reward": rollout_reward,
            "pass_threshold": pass_threshold,
            "max_names": max_names,
        },
        FoldSettings,
    )
    if max_names < 1:
        raise ValueError(f"max_names: {max_names} must be at least 1")
    event = b'{"type":"samples","step":%d,"samples":[%b]}' % (step_number(step), b",".join(_encoded(samples)))
    decoded = events.decode(event)
    window = Window(settings, events.DEFAULT_RUN_ID, scope, 0, step_number(step), 0, None)
    if isinstance(decoded, events.SampleBatch):
        window.add(decoded.samples)
    return step_metrics(window, settings)


def _encoded(samples: Iterable[Any]) -> Iterable[bytes]:
    for place, sample in enumerate(samples):
        try:
            fields = sample_fields(sample)
            fields.setdefault("position", place)
            yield encode_fields(fields)
        except UnencodableSampleError as error:
            raise ValueError(f"sample {place}: {error}") from None
