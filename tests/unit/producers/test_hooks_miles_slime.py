"""The hooks of miles and slime, called as their rollout managers do."""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from stream_metrics import events
from stream_metrics.producers import RolloutProducer
from stream_metrics.producers.environment import shared
from stream_metrics.producers.hooks import _sglang_trainers, miles, slime


# A stand-in for the dataclass in `miles/utils/types.py`, and for slime's, which has no `rollout_id`: those modules
# import torch. Names, nesting and defaults are theirs; fields that the hooks don't read are left out.
@dataclass
class Sample:
    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    remove_sample: bool = False

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    non_generation_time: float = 0.0

    @dataclass
    class SpecInfo:
        spec_accept_token_num: int = 0
        spec_draft_token_num: int = 0

        @property
        def spec_accept_rate(self) -> float:
            return self.spec_accept_token_num / self.spec_draft_token_num if self.spec_draft_token_num > 0 else 0.0

    spec_info: SpecInfo = field(default_factory=SpecInfo)

    @dataclass
    class PrefixCacheInfo:
        cached_tokens: int = 0
        total_prompt_tokens: int = 0

        @property
        def prefix_cache_hit_rate(self) -> float:
            return self.cached_tokens / self.total_prompt_tokens if self.total_prompt_tokens > 0 else 0.0

    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)

    @property
    def effective_response_length(self) -> int:
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length


HOOKS = [miles, slime]
ARGUMENTS = types.SimpleNamespace(reward_key=None, wandb_run_id="w", load_debug_rollout_data=None)


@pytest.fixture
def producer(kafka: Any) -> Iterator[RolloutProducer]:
    with RolloutProducer("nowhere:1", run_id="r", spool_directory="", connect=kafka.connect) as producer:
        shared.set(producer)
        _sglang_trainers._said.clear()
        yield producer
    shared.set(None)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_step_is_sent_and_closed_and_the_trainer_logs_as_ever(
    hook: Any, producer: RolloutProducer, kafka: Any
) -> None:
    samples = [
        Sample(
            group_index=1,
            index=5,
            rollout_id=9,
            response_length=4,
            loss_mask=[1, 1, 0, 1],
            reward=0.5,
            weight_versions=["3", "4"],
            status=Sample.Status.TRUNCATED,
            metadata={"raw_reward": 1.0, "data_source": "math", "trace": object()},
            non_generation_time=2.5,
            spec_info=Sample.SpecInfo(1, 4),
            prefix_cache_info=Sample.PrefixCacheInfo(3, 6),
        ),
        Sample(group_index=1, index=6, reward=None),
    ]
    assert hook.log_rollout(7, ARGUMENTS, samples, {"extra": 1}, 12.5) is False
    producer.flush(5)
    first, second = kafka.samples
    assert first == {
        "group_index": 1,
        "rollout_id": 9,
        "position": 0,
        "index": 5,
        "sample_id": -1,
        "reward": 0.5,
        "metadata": events.Metadata(raw_reward=1.0),
        "response_length": 4,
        "effective_response_length": 3,
        "status": "truncated",
        "data_source": "math",
        "weight_versions": ["3", "4"],
        "values": {"non_generation_time": 2.5, "spec_accept_rate": 0.25, "prefix_cache_hit_rate": 0.5},
    }
    assert (second["reward"], second["rollout_id"], second["status"]) == (None, None, "pending")
    (close,) = kafka.closes
    assert (close.step, close.expected_samples, close.run_id) == (7, 2, "r")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_reward_object_goes_whole_and_the_sidecar_picks(hook: Any, producer: RolloutProducer, kafka: Any) -> None:
    arguments = types.SimpleNamespace(reward_key="score")
    hook.log_rollout(1, arguments, [Sample(reward={"score": 0.25, "format": True, "why": "x"})], None, 0.0)
    producer.flush(5)
    assert kafka.samples[0]["reward"] == {"score": 0.25, "format": True}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_step_with_no_samples_is_closed_too(hook: Any, producer: RolloutProducer, kafka: Any) -> None:
    hook.log_rollout(1, ARGUMENTS, [], None, 0.0)
    producer.flush(5)
    assert kafka.kinds == ["close"]
    assert kafka.closes[0].expected_samples == 0


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("samples", [None, 7, [object()], [None], "abc"])
def test_nothing_reaches_the_trainer(hook: Any, producer: RolloutProducer, samples: Any) -> None:
    assert hook.log_rollout(1, ARGUMENTS, samples, None, 0.0) is False
    assert hook.log_rollout("one", None, samples, None, 0.0) is False
    assert hook.log_evaluation(1, ARGUMENTS, samples, None) is False
    assert hook.log_evaluation(1, ARGUMENTS, {"x": samples}, None) is False


def test_without_a_producer_the_hook_says_so_once_and_the_trainer_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shared.set(None)
    monkeypatch.setenv("STREAM_METRICS_ATTEMPT", "three")
    try:
        for step in range(3):
            assert miles.log_rollout(step, ARGUMENTS, [Sample()], None, 0.0) is False
    finally:
        shared.set(None)
    assert caplog.text.count("STREAM_METRICS_ATTEMPT must be an integer") == 1


def test_an_evaluation_goes_under_its_data_set_with_the_rewards_that_the_trainer_picked(
    producer: RolloutProducer, kafka: Any
) -> None:
    data = {
        "aime": {
            "rewards": [1.0, 0.0],
            "truncated": [False, True],
            "samples": [Sample(index=0, reward={"score": 1.0}), Sample(index=1, reward={"score": 0.0})],
        },
        "math": {"rewards": [math.nan, 1], "truncated": [True, False]},
    }
    assert miles.log_evaluation(20, ARGUMENTS, data, {}) is False
    producer.flush(5)
    assert [(close.scope, close.step, close.expected_samples) for close in kafka.closes] == [
        ("eval/aime", 20, 2),
        ("eval/math", 20, 2),
    ]
    assert [(one["index"], str(one["reward"]), one["status"]) for one in kafka.samples] == [
        (0, "1.0", "pending"),
        (1, "0.0", "pending"),
        (0, "nan", "truncated"),
        (1, "1.0", "completed"),
    ]


def test_debug_data_that_is_loaded_again_is_not_sent_unless_asked(
    producer: RolloutProducer, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = types.SimpleNamespace(load_debug_rollout_data="data/{rollout_id}.pt")
    miles.log_rollout(1, arguments, [Sample()], None, 0.0)
    monkeypatch.setenv("STREAM_METRICS_DEBUG_DATA", "1")
    miles.log_rollout(2, arguments, [Sample()], None, 0.0)
    producer.flush(5)
    assert [close.step for close in kafka.closes] == [2]


def test_masks_of_too_many_tokens_are_not_summed(
    producer: RolloutProducer, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sglang_trainers, "MAX_SUMMED_TOKENS", 5)
    miles.log_rollout(1, ARGUMENTS, [Sample(response_length=6, loss_mask=[1] * 6), Sample()], None, 0.0)
    producer.flush(5)
    assert [one["effective_response_length"] for one in kafka.samples] == [None, None]
    assert [one["response_length"] for one in kafka.samples] == [6, 0]


def test_samples_in_lists_per_group_are_taken_in_order(producer: RolloutProducer, kafka: Any) -> None:
    slime.log_rollout(1, ARGUMENTS, [[Sample(index=0), Sample(index=1)], [Sample(index=2)]], None, 0.0)
    producer.flush(5)
    assert [one["index"] for one in kafka.samples] == [0, 1, 2]
