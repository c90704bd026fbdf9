from __future__ import annotations

import math
from typing import Any

from stream_metrics.core.explain import ExplainingFold, Explanation, explain
from stream_metrics.core.settings import FoldSettings
from stream_metrics.core.view import StepView
from stream_metrics.events import Metadata, Sample
from stream_metrics.testing import MemoryLog, close, sample
from support.windows import window_of


def explanation_of(samples: list[Sample], settings: FoldSettings | None = None) -> Explanation:
    settings = settings or FoldSettings()
    return explain(StepView(window_of(samples, settings), settings))


def test_groups_have_their_rollouts_and_these_their_samples() -> None:
    made = explanation_of(
        [
            Sample(step=7, group_index=0, rollout_id=10, reward=1.0),
            Sample(step=7, group_index=1, rollout_id=10, reward=0.5),
            Sample(step=7, group_index=0, rollout_id=10, reward=0.0),
            Sample(step=7, group_index=0, index=3, reward=0.5),
            Sample(step=7, reward=None),
            Sample(step=7, reward=math.nan),
        ]
    )
    assert [group.group_index for group in made.groups] == [0, 1, None]
    first = made.groups[0]
    assert (first.mean, first.std, first.is_flat) == (0.5, 0.0, True)
    assert [(one.kind, one.identity, one.reward, one.is_disagreeing) for one in first.rollouts] == [
        ("rollout", 10, 0.5, True),
        ("sample", 3, 0.5, False),
    ]
    assert [(one.number, one.reward) for one in first.rollouts[0].samples] == [(0, 1.0), (2, 0.0)]
    assert made.groups[1].is_flat is False  # one rollout has no spread to lack
    oddities = [rollout.samples[0].oddity for rollout in made.groups[2].rollouts]
    assert oddities == ["missing", "not finite"]
    assert (made.groups[2].mean, made.groups[2].std) == (None, None)


def test_the_numbers_are_those_of_the_result() -> None:
    samples = [Sample(step=7, group_index=n % 3, rollout_id=n // 2, reward=n / 7) for n in range(40)]
    made = explanation_of(samples)
    rewards = [one.reward for group in made.groups for one in group.rollouts if one.reward is not None]
    assert math.isclose(sum(rewards) / len(rewards), made.metrics["rollout/episode_raw_reward"])
    assert sum(len(one.samples) for group in made.groups for one in group.rollouts) == 40


def test_it_says_where_rewards_are_read() -> None:
    raw = Sample(step=7, metadata=Metadata(raw_reward=0.0))
    assert explanation_of([raw]).reward_source == "metadata.raw_reward"
    assert explanation_of([]).reward_source == "reward"
    assert (
        explanation_of([], FoldSettings(reward_key="a")).reward_source == "reward, or reward['a'] where it is an object"
    )


def folded(log: MemoryLog, **more: Any) -> ExplainingFold:
    fold = ExplainingFold(FoldSettings(), "t", 0, **{"step": 1, "run_id": None, "scope": "rollout"} | more)
    fold.feed(log.records)
    fold.end()
    return fold


def test_a_fold_explains_the_step_as_of_its_last_result() -> None:
    log = MemoryLog()
    for event in (sample(1, 1.0), close(1), sample(1, 0.0), *(close(step) for step in range(2, 6))):
        log.append(event)
    (made,) = folded(log).explained.values()
    assert made.metrics["rollout/episode_raw_reward"] == 0.5
    assert (made.is_closed, made.is_complete, made.late_samples) == (True, True, 1)


def test_a_step_that_is_still_open_is_explained_as_it_stands() -> None:
    log = MemoryLog()
    log.append(sample(1, 1.0, run_id="a"))
    log.append(sample(1, 0.0, run_id="b"))
    assert {key[0]: one.is_closed for key, one in folded(log).explained.items()} == {"a": False, "b": False}
    assert set(folded(log, run_id="b").explained) == {("b", "rollout")}
    assert not folded(log, step=2).explained
    assert folded(log, step=2).steps == {("a", "rollout", 1), ("b", "rollout", 1)}
