"""Fed by the hook of miles and slime, the sidecar's numbers are those computed directly from the trainer's samples."""

from __future__ import annotations

import enum
import math
import types
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from stream_metrics.core.settings import FoldSettings
from stream_metrics.producers import RolloutProducer
from stream_metrics.producers.hooks import _sglang_trainers
from stream_metrics.testing import MemoryLog


class Status(enum.Enum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


# After the dataclass of the same name in `miles/utils/types.py`; slime's has no `rollout_id` and is the same otherwise.
@dataclass
class Sample:
    group_index: int | None = None
    index: int | None = None
    rollout_id: int | str | None = None
    response_length: int = 0
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    status: Status = Status.COMPLETED
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def effective_response_length(self) -> int:
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length


class Broker:
    """Takes every record at once, in order."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self._callbacks: list[Callable[[None, None], None]] = []

    def produce(self, topic: str, value: bytes, key: bytes, *, on_delivery: Callable[[None, None], None]) -> None:
        self.log.append(value, key=key)
        self._callbacks.append(on_delivery)

    def poll(self, timeout: float) -> int:
        callbacks, self._callbacks = self._callbacks, []
        for on_delivery in callbacks:
            on_delivery(None, None)
        return len(callbacks)

    def flush(self, timeout: float) -> int:
        self.poll(timeout)
        return 0

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        pass

    def __len__(self) -> int:
        return len(self._callbacks)


numbers = st.one_of(st.floats(-10, 10), st.integers(-3, 3), st.booleans(), st.just(math.nan), st.just(math.inf))
rewards = st.one_of(
    st.none(),
    numbers,
    st.dictionaries(st.sampled_from(["score", "format"]), numbers),
)
samples = st.builds(
    Sample,
    group_index=st.one_of(st.none(), st.integers(0, 3)),
    index=st.one_of(st.none(), st.integers(0, 5)),
    rollout_id=st.one_of(st.none(), st.integers(0, 3), st.sampled_from(["0", "a"])),
    response_length=st.integers(0, 100),
    reward=rewards,
    loss_mask=st.one_of(st.none(), st.lists(st.integers(0, 1), max_size=5)),
    weight_versions=st.lists(st.sampled_from(["1", "2"]), max_size=2),
    status=st.sampled_from(Status),
    metadata=st.one_of(
        st.just({}),
        st.fixed_dictionaries({"raw_reward": st.one_of(st.none(), numbers)}),
        st.just({"unserialisable": object(), "raw_reward": 1.0}),
    ),
)


def raw_reward(sample: Sample, is_in_metadata: bool, reward_key: str | None) -> float | None:
    if is_in_metadata:
        value: Any = sample.metadata.get("raw_reward")
    elif isinstance(sample.reward, dict):
        value = sample.reward.get(reward_key) if reward_key is not None else None
    else:
        value = sample.reward
    return value if value is not None and math.isfinite(value) else None


def episode_raw_reward(step: list[Sample], reward_key: str | None) -> float:
    """The definition, applied to the list itself."""
    is_in_metadata = bool(step) and step[0].metadata.get("raw_reward") is not None
    rollouts: dict[Any, list[float]] = defaultdict(list)
    for position, sample in enumerate(step):
        if sample.rollout_id is not None:
            key: Any = ("rollout", sample.group_index, sample.rollout_id)
        elif sample.index is not None:
            key = ("sample", sample.group_index, sample.index)
        else:
            key = ("position", position)
        value = raw_reward(sample, is_in_metadata, reward_key)
        if value is not None:
            rollouts[key].append(float(value))
    means = [math.fsum(values) / len(values) for values in rollouts.values()]
    return math.fsum(means) / len(means) if means else 0.0


@given(
    st.lists(st.lists(samples, max_size=12), min_size=1, max_size=4), st.sampled_from([None, "score"]), st.booleans()
)
def test_the_two_metrics_are_those_of_the_samples_themselves(
    steps: list[list[Sample]], reward_key: str | None, is_repeated: bool
) -> None:
    broker = Broker()
    arguments = types.SimpleNamespace(reward_key=reward_key)
    with RolloutProducer("nowhere:1", spool_directory="", connect=lambda on_error: broker) as producer:
        for number, step in enumerate(steps):
            for _ in range(1 + is_repeated):
                _sglang_trainers.publish_rollout(number, arguments, step, producer)
    outcome = broker.log.fold(FoldSettings(reward_key=reward_key))
    assert outcome.dead_letters == []
    assert [result.step for result in outcome.results] == list(range(len(steps)))
    for step, result in zip(steps, outcome.results, strict=True):
        assert result.complete
        assert result.metrics["rollout/num_training_samples"] == len(step)
        expected = episode_raw_reward(step, reward_key)
        assert math.isclose(result.metrics["rollout/episode_raw_reward"], expected, rel_tol=0, abs_tol=1e-12)
