"""`aggregate` gives what the sidecar would publish."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stream_metrics
from stream_metrics import aggregate, testing
from stream_metrics.core.settings import FoldSettings


def test_the_worked_examples() -> None:
    def of(*samples: tuple[int, int, float]) -> float:
        made = aggregate({"group_index": group, "rollout_id": key, "reward": reward} for group, key, reward in samples)
        assert made["rollout/num_training_samples"] == len(samples)
        return made["rollout/episode_raw_reward"]

    assert of((0, 1, 1.0), (0, 1, 1.0), (0, 1, 1.0), (0, 2, 0.0)) == 0.5
    assert of((0, 1, 0.0), (0, 1, 1.0), (0, 2, 1.0)) == 0.75
    assert of((0, 10, 1.0), (0, 10, 1.0), (1, 10, 0.0)) == 0.5
    assert of() == 0.0


@pytest.mark.parametrize("rule", ["mean", "sum", "last", "first", "max"])
def test_it_is_what_the_fold_publishes_to_the_last_bit(rule: Any) -> None:
    rng = random.Random(7)
    samples = [
        {
            "group_index": rng.randrange(4),
            "rollout_id": rng.randrange(40),
            "reward": rng.choice([rng.random(), math.nan, {"main": rng.random()}, None, True]),
            "metadata": {"raw_reward": rng.random()} if rng.random() < 0.1 else {},
            "response_length": rng.randrange(4000),
            "status": rng.choice(["completed", "truncated"]),
            "data_source": rng.choice("abcdef"),
            "values": {"turns": rng.randrange(9)},
            "position": place,
            "sample_id": rng.randrange(150),
        }
        for place in range(200)
    ]
    log = testing.MemoryLog()
    for one in samples:
        log.append(json.dumps({"type": "sample", "step": 3, "scope": "eval/x", **one}).encode())
    log.append(testing.close(3, scope="eval/x"))
    settings = {"reward_key": "main", "rollout_reward": rule, "pass_threshold": 0.5, "max_names": 3}
    (published,) = log.fold(FoldSettings(**settings)).results
    assert aggregate(samples, step=3, scope="eval/x", **settings) == published.metrics


def test_samples_may_be_objects_and_hold_numbers_of_other_libraries() -> None:
    samples = [SimpleNamespace(rollout_id=np.int64(k), reward=np.float32(k), response_length=5) for k in (0, 1)]
    assert aggregate(samples)["rollout/episode_raw_reward"] == 0.5


def test_the_first_of_the_list_decides_where_rewards_are_read() -> None:
    with_raw, without = {"reward": 0.0, "metadata": {"raw_reward": 1.0}}, {"reward": 0.0}
    assert aggregate([with_raw, with_raw])["rollout/episode_raw_reward"] == 1.0
    assert aggregate([without, with_raw])["rollout/episode_raw_reward"] == 0.0


def test_what_cannot_travel_is_named_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"sample 1: rollout_id: "):
        aggregate([{"reward": 1.0}, {"rollout_id": [1]}])


@pytest.mark.parametrize(
    "wrong", [{"rollout_reward": "median"}, {"max_names": 0}, {"step": -1}, {"step": 1.5}, {"pass_threshold": "x"}]
)
def test_settings_that_are_not_allowed_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has its own words
        aggregate([], **wrong)


def test_importing_the_package_imports_nothing_else() -> None:
    script = (
        "import sys, stream_metrics\n"
        "sys.exit(str({'numpy', 'confluent_kafka', 'msgspec', 'stream_metrics.library'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == "set()\n"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="aggregat"):
        stream_metrics.aggregat  # noqa: B018
