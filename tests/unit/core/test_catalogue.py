"""The catalogue by worked examples; `tests/property/test_catalogue.py` has it against the definitions."""

from __future__ import annotations

import inspect
import math
from typing import Any

import msgspec
import pytest

from stream_metrics.core.catalogue import METRICS, OUTCOMES, step_metrics
from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import Metadata, Sample, SampleFields
from support.windows import metrics_of, window_of


def sample(rollout: int | str | None = None, reward: Any = None, group: int | str | None = None, **more: Any) -> Sample:
    return Sample(step=7, rollout_id=rollout, reward=reward, group_index=group, **more)


def part(metrics: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): number for name, number in metrics.items() if name.startswith(prefix)}


ALWAYS = {
    "num_training_samples": 0,
    "episode_raw_reward": 0.0,
    "raw_reward": 0.0,
    "num_rollouts": 0,
    "num_scored_rollouts": 0,
    "num_groups": 0,
    "weighting_gap": 0.0,
    "group_mean_reward": 0.0,
    "disagreeing_rollouts": 0,
    "samples_per_rollout_mean": 0.0,
    "samples_per_rollout_max": 0,
    "compacted_rollout_ratio": 0.0,
    "missing_rewards": 0,
    "nonfinite_rewards": 0,
    "mixed_reward_sources": 0,
    "duplicate_samples": 0,
    "step": 7,
}


def test_an_empty_step_has_what_is_always_there_and_nothing_else() -> None:
    assert metrics_of([]) == ALWAYS


def test_a_sample_with_nothing_in_it() -> None:
    made = metrics_of([sample()])
    changed = {"num_training_samples": 1, "num_rollouts": 1, "num_groups": 1, "missing_rewards": 1}
    assert made == ALWAYS | changed | {"samples_per_rollout_mean": 1.0, "samples_per_rollout_max": 1}


@pytest.mark.parametrize(
    ("samples", "count", "reward"),
    [
        ([sample(1, 1.0), sample(1, 1.0), sample(1, 1.0), sample(2, 0.0)], 4, 0.5),
        ([sample(1, 0.0), sample(1, 1.0), sample(2, 1.0)], 3, 0.75),
        ([sample(10, 1.0, 0), sample(10, 1.0, 0), sample(10, 0.0, 1)], 3, 0.5),
        ([], 0, 0.0),
    ],
)
def test_the_worked_examples_of_the_two_core_metrics(samples: list[Sample], count: int, reward: float) -> None:
    made = metrics_of(samples)
    assert (made["num_training_samples"], made["episode_raw_reward"]) == (count, reward)


def test_compaction_and_what_it_does_to_the_mean() -> None:
    made = metrics_of([sample(1, 1.0, 0), sample(1, 1.0, 0), sample(1, 1.0, 0), sample(2, 0.0, 0), sample(3, 0.0, 1)])
    assert made["raw_reward"] == 0.6
    assert made["episode_raw_reward"] == 1 / 3
    assert made["weighting_gap"] == 0.6 - 1 / 3
    assert made["group_mean_reward"] == 0.25
    assert made["samples_per_rollout_mean"] == 5 / 3
    assert made["samples_per_rollout_max"] == 3
    assert made["compacted_rollout_ratio"] == 1 / 3
    assert made["disagreeing_rollouts"] == 0


def test_equal_rewards_have_no_spread_however_they_round() -> None:
    """Three times 0.1 over three is not 0.1 in floating point."""
    samples = [sample(1, 0.1, 0), sample(1, 0.1, 0), sample(1, 0.1, 0), sample(2, 0.1, 0)]
    made = metrics_of(samples)
    assert made["episode_raw_reward"] == made["raw_reward"] == 0.1
    assert made["weighting_gap"] == made["episode_raw_reward_std"] == made["episode_reward_std_within_group"] == 0.0
    assert made["episode_zero_std_ratio"] == 1.0


@pytest.mark.parametrize(("rule", "reward"), [("mean", 2.0), ("sum", 6.0), ("first", 3.0), ("last", 1.0), ("max", 3.0)])
def test_the_rule_within_a_rollout(rule: Any, reward: float) -> None:
    samples = [sample(1, 1.0), sample(1, 2.0), sample(1, 3.0)]
    for position, one in zip((9, 5, 0), samples, strict=True):
        one.position = position
    made = metrics_of(samples, FoldSettings(rollout_reward=rule))
    assert made["episode_raw_reward"] == reward
    assert made["raw_reward"] == 2.0
    assert made["disagreeing_rollouts"] == 1


def test_first_and_last_go_by_the_log_where_there_is_no_position() -> None:
    samples = [sample(1, 1.0), sample(1, None), sample(1, 3.0), sample(1, math.nan)]
    assert metrics_of(samples, FoldSettings(rollout_reward="first"))["episode_raw_reward"] == 1.0
    assert metrics_of(samples, FoldSettings(rollout_reward="last"))["episode_raw_reward"] == 3.0


def test_the_spread_over_rollouts() -> None:
    made = metrics_of([sample(number, float(number)) for number in range(5)])
    assert part(made, "episode_raw_reward_") == {
        "std": math.sqrt(2.0),
        "min": 0.0,
        "max": 4.0,
        "median": 2.0,
        "p10": 0.4,
        "p90": 3.6,
    }


def test_groups() -> None:
    made = metrics_of(
        [
            *(sample(number, 1.0, "solved") for number in range(4)),
            *(sample(number, 0.0, "hopeless") for number in range(4)),
            *(sample(number, float(number < 1), "mixed") for number in range(4)),
            sample(0, 0.5, "alone"),
            sample(0, None, "unscored"),
            sample(0, 1.0),  # no group
        ]
    )
    assert made["num_groups"] == 6
    assert part(made, "zero_std/") == {
        "count_0.0": 1,
        "count_0.5": 1,
        "count_1.0": 1,
        "all_zero_percentage": 0.2,
        "all_one_percentage": 0.2,
    }
    assert made["episode_zero_std_ratio"] == 2 / 3
    assert made["episode_reward_std_within_group"] == math.sqrt(0.1875) / 4
    assert part(made, "passrate/") == {
        "pass@1": pytest.approx((1 + 0 + 0.25 + 0) / 4),
        "pass@2": pytest.approx((1 + 0 + 0.5) / 3),
        "pass@4": pytest.approx((1 + 0 + 1) / 3),
    }
    assert made["solve_none_ratio"] == 0.5
    assert made["solve_all_ratio"] == 0.25


def test_a_rollout_passes_by_its_reward_not_by_its_samples() -> None:
    """Three samples of one good rollout are one chance, not three."""
    made = metrics_of([sample(1, 1.0, 0), sample(1, 1.0, 0), sample(1, 1.0, 0), sample(2, 0.0, 0)])
    assert part(made, "passrate/") == {"pass@1": 0.5, "pass@2": 1.0}
    assert metrics_of([sample(1, 0.5, 0)], FoldSettings(pass_threshold=0.5))["passrate/pass@1"] == 1.0


def test_without_groups_there_are_no_metrics_of_groups() -> None:
    made = metrics_of([sample(1, 1.0), sample(2, 0.0)])
    assert made["num_groups"] == 1
    assert not {name for name in made if name.startswith(("zero_std", "passrate", "solve", "episode_zero"))}


def test_rewards_near_zero_are_counted_as_zero_without_a_sign() -> None:
    made = metrics_of([sample(1, -0.04, 0), sample(1, -0.0, 1), sample(1, 0.04, 2)])
    assert part(made, "zero_std/") == {"count_0.0": 3, "all_zero_percentage": 1.0, "all_one_percentage": 0.0}
    assert math.copysign(1, metrics_of([sample(1, -0.0)])["episode_raw_reward"]) == 1


def test_lengths() -> None:
    made = metrics_of(
        [
            sample(1, response_length=10),
            sample(1, response_length=99, effective_response_length=20),
            sample(2, response_length=0),
            sample(3, response_length=-1),
            sample(4, response_length=2**53),
            sample(5),
        ]
    )
    assert part(made, "response_len/") == {"mean": 10.0, "median": 10.0, "max": 20, "min": 0}
    assert (made["episode_response_len_mean"], made["episode_response_len_max"]) == (15.0, 30)
    assert made["invalid_response_lengths"] == 2


def test_lengths_whose_sum_is_past_64_bits() -> None:
    made = metrics_of([sample(1, response_length=2**53 - 1) for _ in range(2000)])
    assert made["response_len/mean"] == 2.0**53 - 1
    assert made["episode_response_len_max"] == float(2000 * (2**53 - 1))
    assert isinstance(made["episode_response_len_max"], float)  # no reader holds that integer
    msgspec.json.encode(made)


def test_endings_are_shares_of_all_samples() -> None:
    samples = [sample(1, status="truncated"), sample(1, status="completed"), sample(2, status="aborted")]
    made = metrics_of([*samples, sample(2, status="failed"), sample(3, status="odd"), sample(4)])
    assert (made["truncated_ratio"], made["aborted_ratio"], made["failed_ratio"]) == (1 / 6, 1 / 6, 1 / 6)
    assert made["episode_truncated_ratio"] == 1 / 4


def test_weight_versions() -> None:
    made = metrics_of(
        [sample(1, weight_versions=[3, 5]), sample(1, weight_versions=["4"]), sample(2, weight_versions=[]), sample(2)]
    )
    expected = {"mean": 3.5, "median": 3.5, "max": 4, "min": 3, "mixed_version_ratio": 0.25}
    assert part(made, "weight_version/") == expected


def test_values_by_sample_and_by_rollout() -> None:
    made = metrics_of(
        [
            sample(1, values={"turns": 4, "cache": True}),
            sample(1, values={"turns": 6, "cache": math.nan}),
            sample(2, values={"turns": 1.0, "cache": "text", "empty": None}),
            sample(3, values={}),
        ]
    )
    assert (made["turns"], made["episode_turns"]) == (11 / 3, 3.0)
    assert (made["cache"], made["episode_cache"]) == (1.0, 1.0)
    assert made["invalid_values"] == 2
    assert "empty" not in made


def test_a_value_never_takes_the_place_of_a_metric() -> None:
    made = metrics_of(
        [
            sample(
                1,
                1.0,
                values={
                    "raw_reward": 5,  # and so is episode_raw_reward
                    "step": 5,  # episode_step isn't
                    "truncated_ratio": 5,  # not in this window, but the catalogue's; so is episode_truncated_ratio
                    "passrate/pass@64": 5,
                    "turns": 1,
                    "episode_turns": 2,  # a value's own name goes before the mean over rollouts of another
                },
            )
        ]
    )
    assert (made["raw_reward"], made["episode_raw_reward"], made["step"]) == (1.0, 1.0, 7)
    assert "truncated_ratio" not in made
    assert "passrate/pass@64" not in made
    assert (made["turns"], made["episode_turns"], made["episode_episode_turns"]) == (1.0, 2.0, 2.0)
    assert made["episode_step"] == 5.0
    assert made["clashing_names"] == 7


def test_components_of_reward_objects() -> None:
    made = metrics_of(
        [
            sample(1, {"accuracy": 1.0, "format": 0.0, "judge": "good"}),
            sample(1, {"accuracy": 0.0}),
            sample(2, {"accuracy": 1.0, "format": math.inf}),
            sample(3, {}),
            sample(4, 0.5),
        ],
        FoldSettings(reward_key="accuracy"),
    )
    assert part(made, "reward/") == {"accuracy": 0.75, "format": 0.0}
    assert made["nonfinite_reward_components"] == 1
    assert made["missing_rewards"] == 1
    assert made["episode_raw_reward"] == pytest.approx((0.5 + 1.0 + 0.5) / 3)


def test_what_markers_say_was_dropped() -> None:
    made = metrics_of([], dropped={"too long": 3, "aborted": 0})
    assert part(made, "dropped/") == {"too long": 3, "aborted": 0}
    assert made["dropped_total"] == 3
    made = metrics_of([], FoldSettings(max_names=1), dropped={"b": 3, "a": 1, "c": 5})
    assert part(made, "dropped/") == {"a": 1, "other": 8}
    assert (made["dropped_total"], made["folded_names"]) == (9, 2)
    msgspec.json.encode(metrics_of([], dropped={str(reason): 2**53 - 1 for reason in range(5000)}))


def test_by_data_source() -> None:
    made = metrics_of(
        [
            sample(1, 1.0, data_source="openai/gsm8k"),
            sample(1, 0.0, data_source="openai/gsm8k"),
            sample(2, 1.0, data_source="openai/gsm8k"),
            sample(1, 1.0, data_source="aime"),
            sample(3, 0.0),
        ]
    )
    assert part(made, "by_data_source/") == {
        "openai/gsm8k/episode_raw_reward": 0.75,
        "openai/gsm8k/num_training_samples": 3,
        "openai/gsm8k/num_rollouts": 2,
        "aime/episode_raw_reward": 1.0,
        "aime/num_training_samples": 1,
        "aime/num_rollouts": 1,
    }


def test_names_are_bounded() -> None:
    odd = ["", "x" * 10_000, "line\nbreak", "größe", "a/b c"]
    samples = [
        sample(number, {f"c{number}": 1.0}, f"g{number}", data_source=f"s{number}", values={f"v{number}": 1.0})
        for number in range(200)
    ]
    samples += [sample(999, {name: 1.0}, data_source=name, values={name: 1.0}) for name in odd]
    made = metrics_of(samples)
    for prefix, names_each in (("reward/", 65), ("by_data_source/", 65 * 3), ("v", 0)):
        assert len(part(made, prefix)) <= max(names_each, 65)
    assert made["folded_names"] == 3 * (205 - 64)
    assert len(made) < 500
    assert max(map(len, made)) < 200
    assert {"other", "episode_other", "reward/other", "by_data_source/other/num_rollouts"} <= made.keys()


def test_zero_std_names_are_bounded_by_how_many_groups_have_them() -> None:
    samples = [sample(1, float(group), group) for group in range(100)] + [sample(1, 70.0, "a"), sample(1, 70.0, "b")]
    made = metrics_of(samples, FoldSettings(max_names=2))
    assert part(made, "zero_std/count_") == {"0.0": 1, "70.0": 3, "other": 98}
    assert made["folded_names"] == 98


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    made = metrics_of([sample(1, 1.7e308), sample(2, -1.7e308), sample(3, 1.7e308)])
    assert made["episode_raw_reward"] == pytest.approx(1.7e308 / 3)
    assert made["episode_raw_reward_std"] == pytest.approx(1.7e308 * math.sqrt(8 / 9))
    assert made["nonfinite_metrics"] >= 1
    assert all(math.isfinite(number) for number in made.values())


def test_a_rollout_whose_sum_is_past_a_double_is_in_no_mean() -> None:
    made = metrics_of([sample(1, 1.7e308), sample(1, 1.7e308), sample(2, 1.0)], FoldSettings(rollout_reward="sum"))
    assert (made["episode_raw_reward"], made["nonfinite_rewards"], made["num_scored_rollouts"]) == (1.0, 1, 1)


def test_odd_rewards_are_counted_and_left_out() -> None:
    odd = [math.nan, math.inf, -math.inf, 10**400, None, {}]
    made = metrics_of([sample(number, reward) for number, reward in enumerate(odd)] + [sample(9, 0.25)])
    assert (made["episode_raw_reward"], made["nonfinite_rewards"], made["missing_rewards"]) == (0.25, 4, 2)


def test_the_first_sample_decides_where_the_reward_is_read() -> None:
    raw = Metadata(raw_reward=1.0)
    made = metrics_of([sample(1, 9.0, position=1), sample(2, 8.0, position=0, metadata=raw)])
    assert (made["episode_raw_reward"], made["missing_rewards"], made["mixed_reward_sources"]) == (1.0, 1, 1)


def test_an_evaluation_has_its_own_prefix() -> None:
    window = window_of([sample(1, 1.0)], scope="eval/aime24")
    made = step_metrics(window, FoldSettings())
    assert made["eval/aime24/episode_raw_reward"] == 1.0
    assert made["eval/aime24/step"] == 7
    assert all(name.startswith("eval/aime24/") for name in made)


def test_sample_weighted_metrics_are_what_a_per_sample_trainer_logs() -> None:
    """The formulas of miles' own logging, so that a user who switches sees the same history."""
    import numpy as np

    samples: list[SampleFields] = [
        sample(
            number // 3,
            float(number % 2),
            number // 6,
            response_length=number * 7 % 50,
            status="truncated" if number % 4 == 0 else "completed",
            weight_versions=[number // 8, number // 9],
        )
        for number in range(60)
    ]
    made = metrics_of(samples)
    lengths = [one.response_length for one in samples]
    assert made["response_len/mean"] == np.mean(lengths)  # type: ignore[arg-type]
    assert made["response_len/median"] == np.median(lengths)  # type: ignore[arg-type]
    assert made["truncated_ratio"] == np.mean([one.status == "truncated" for one in samples])
    assert made["raw_reward"] == np.mean([one.reward for one in samples])  # type: ignore[arg-type]
    oldest = [min(int(version) for version in one.weight_versions or []) for one in samples]
    assert made["weight_version/mean"] == np.mean(oldest)
    assert made["weight_version/mixed_version_ratio"] == np.mean(
        [len(set(one.weight_versions or ())) > 1 for one in samples]
    )


def test_each_metric_says_what_it_is() -> None:
    functions = [metric.function for metric in METRICS] + list(OUTCOMES.values())
    for function in functions:
        text = inspect.getdoc(function) or ""
        for section in ("Formula:", "Unit:", "Cost:", "Source:"):
            assert f"\n{section}" in text, f"{function.__name__} doesn't say its {section[:-1].lower()}"


def test_keys_are_unique() -> None:
    keys = [metric.key for metric in METRICS] + list(OUTCOMES)
    assert len(keys) == len(set(keys))
