"""The metrics of one step straight from their definitions: plain dicts, rational numbers, no arrays, nothing shared.

Slow on purpose. It is the oracle of property tests, so it must not import anything of the core but the settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import SampleFields

Number = int | float
LARGEST = 2**53 - 1


def naive_metrics(
    samples: Sequence[SampleFields],
    settings: FoldSettings | None = None,
    *,
    step: int | None = None,
    dropped: Mapping[str, int] | None = None,
    duplicates: int = 0,
) -> dict[str, Number]:
    """Returns the metrics of a step's samples in log order, by key without scope.

    Samples whose `sample_id` was seen are dropped and counted, on top of `duplicates`. What isn't finite is in there
    too, as a non-finite number; `published` leaves it out.
    """
    settings = settings or FoldSettings()
    kept = []
    seen = set()
    for sample in samples:
        if sample.sample_id is not None and sample.sample_id in seen:
            duplicates += 1
            continue
        seen.add(sample.sample_id)
        kept.append(sample)
    made: dict[str, Number] = {}
    keys = rollout_keys(kept)
    rewards = chosen_rewards(kept, settings)
    made |= _counts(kept, keys, rewards, settings)
    made["duplicate_samples"] = duplicates
    made |= _reward_metrics(kept, keys, rewards, settings)
    made |= _group_metrics(kept, keys, rewards, settings)
    made |= _length_metrics(kept, keys)
    made |= _status_metrics(kept, keys)
    made |= _version_metrics(kept)
    folded = max(0, len(_flat_groups(kept, rewards)) - settings.max_names)
    folded += _components(made, kept, keys, settings)
    folded += _sources(made, kept, keys, rewards, settings)
    folded += _dropped(made, dropped or {}, settings)
    folded += _values(made, kept, keys, settings)
    if folded:
        made["folded_names"] = folded
    if step is not None:
        made["step"] = step
    return made


def published(metrics: Mapping[str, Number]) -> dict[str, Number]:
    """Returns what is left when metrics that aren't finite are counted and left out."""
    finite = {name: number for name, number in metrics.items() if math.isfinite(number)}
    if len(finite) < len(metrics):
        finite["nonfinite_metrics"] = len(metrics) - len(finite)
    return finite


def rollout_keys(samples: Sequence[SampleFields]) -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []
    for place, sample in enumerate(samples):
        if sample.rollout_id is not None:
            made.append(("rollout", sample.group_index, sample.rollout_id))
        elif sample.index is not None:
            made.append(("sample", sample.group_index, sample.index))
        else:
            made.append(("position", sample.group_index, place))
    return made


def as_number(value: Any) -> float | None:
    """Returns None for what is no number, and infinity for any number that isn't finite."""
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return math.inf
    return number if math.isfinite(number) else math.inf


def chosen_rewards(samples: Sequence[SampleFields], settings: FoldSettings) -> list[float | None]:
    def raw(sample: SampleFields) -> Any:
        return None if sample.metadata is None else sample.metadata.raw_reward

    def plain(sample: SampleFields) -> Any:
        if isinstance(sample.reward, dict):
            return None if settings.reward_key is None else sample.reward.get(settings.reward_key)
        return sample.reward

    if not samples:
        return []
    with_position = [sample for sample in samples if sample.position is not None]
    first = min(with_position, key=lambda sample: sample.position or 0) if with_position else samples[0]
    read = raw if raw(first) is not None else plain
    return [as_number(read(sample)) for sample in samples]


def mean(numbers: Iterable[Number]) -> float:
    """Returns `fsum` over the count; of equal numbers that number, and the rational mean where the sum overflows."""
    listed = list(numbers)
    if not listed:
        return 0.0
    if len(set(listed)) == 1:
        return float(listed[0])
    try:
        return math.fsum(listed) / len(listed)
    except OverflowError:
        return float(sum(map(Fraction, listed)) / len(listed))


def std(numbers: Sequence[Number]) -> float:
    exact = [Fraction(number) for number in numbers]
    middle = sum(exact) / len(exact)
    variance = sum((number - middle) ** 2 for number in exact) / len(exact)
    return root(variance)


def root(square: Fraction) -> float:
    """Returns the square root of a number of any size: by integers, to 64 bits."""
    if not square:
        return 0.0
    shift = 128 - square.numerator.bit_length() + square.denominator.bit_length()
    shift += shift % 2
    whole = math.isqrt(int(square * Fraction(2) ** shift))
    return float(Fraction(whole) / Fraction(2) ** (shift // 2))


def percentile(numbers: Sequence[float], percent: int) -> float:
    ordered = sorted(numbers)
    place = Fraction(percent, 100) * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(Fraction(ordered[low]) + (place - low) * (Fraction(ordered[high]) - Fraction(ordered[low])))


def one_reward(rewards: Sequence[tuple[SampleFields, float]], settings: FoldSettings) -> float:
    """Returns the reward of a rollout from those of its samples, in log order."""
    numbers = [reward for _, reward in rewards]
    if settings.rollout_reward == "mean":
        return mean(numbers)
    if settings.rollout_reward == "sum":
        try:
            return float(sum(map(Fraction, numbers)))
        except OverflowError:
            return math.inf
    if settings.rollout_reward == "max":
        return max(numbers)
    in_order = [
        reward
        for _, _, reward in sorted(
            (math.inf if sample.position is None else sample.position, place, reward)
            for place, (sample, reward) in enumerate(rewards)
        )
    ]
    return in_order[0] if settings.rollout_reward == "first" else in_order[-1]


def scores(
    samples: Sequence[SampleFields],
    keys: Sequence[tuple[Any, ...]],
    rewards: Sequence[float | None],
    settings: FoldSettings,
) -> dict[tuple[Any, ...], float]:
    """Returns one reward for each rollout with a usable one; infinite where the sum is past a double."""
    by_rollout: dict[tuple[Any, ...], list[tuple[SampleFields, float]]] = {}
    for sample, key, reward in zip(samples, keys, rewards, strict=True):
        if reward is not None and math.isfinite(reward):
            by_rollout.setdefault(key, []).append((sample, reward))
    return {key: one_reward(listed, settings) for key, listed in by_rollout.items()}


def _finite_scores(*args: Any) -> dict[tuple[Any, ...], float]:
    return {key: score for key, score in scores(*args).items() if math.isfinite(score)}


def _counts(samples: Any, keys: Any, rewards: Any, settings: FoldSettings) -> dict[str, Number]:
    made: dict[str, Number] = {"num_training_samples": len(samples), "num_rollouts": len(set(keys))}
    made["num_scored_rollouts"] = len(_finite_scores(samples, keys, rewards, settings))
    made["num_groups"] = len({sample.group_index for sample in samples})
    sizes = [keys.count(key) for key in set(keys)]
    made["samples_per_rollout_mean"] = mean(sizes)
    made["samples_per_rollout_max"] = max(sizes, default=0)
    made["compacted_rollout_ratio"] = mean(size > 1 for size in sizes)
    usable: dict[Any, set[float]] = {}
    for key, reward in zip(keys, rewards, strict=True):
        if reward is not None and math.isfinite(reward):
            usable.setdefault(key, set()).add(reward)
    made["disagreeing_rollouts"] = sum(len(different) > 1 for different in usable.values())
    made["missing_rewards"] = rewards.count(None)
    made["nonfinite_rewards"] = sum(reward is not None and math.isinf(reward) for reward in rewards)
    made["nonfinite_rewards"] += sum(map(math.isinf, scores(samples, keys, rewards, settings).values()))
    carrying = sum(sample.metadata is not None and sample.metadata.raw_reward is not None for sample in samples)
    made["mixed_reward_sources"] = int(0 < carrying < len(samples))
    return made


def _reward_metrics(samples: Any, keys: Any, rewards: Any, settings: FoldSettings) -> dict[str, Number]:
    by_rollout = _finite_scores(samples, keys, rewards, settings)
    listed = list(by_rollout.values())
    made: dict[str, Number] = {"episode_raw_reward": mean(listed)}
    made["raw_reward"] = mean(reward for reward in rewards if reward is not None and math.isfinite(reward))
    made["weighting_gap"] = made["raw_reward"] - made["episode_raw_reward"]
    by_group: dict[Any, list[float]] = {}
    for key, score in by_rollout.items():
        by_group.setdefault(key[1], []).append(score)
    made["group_mean_reward"] = mean(map(mean, by_group.values()))
    if listed:
        made["episode_raw_reward_std"] = std(listed)
        made["episode_raw_reward_min"] = min(listed)
        made["episode_raw_reward_max"] = max(listed)
        made["episode_raw_reward_median"] = percentile(listed, 50)
        made["episode_raw_reward_p10"] = percentile(listed, 10)
        made["episode_raw_reward_p90"] = percentile(listed, 90)
    return made


def _flat_groups(samples: Any, rewards: Any) -> dict[float, int]:
    by_group: dict[Any, set[float]] = {}
    for sample, reward in zip(samples, rewards, strict=True):
        if sample.group_index is not None and reward is not None and math.isfinite(reward):
            by_group.setdefault(sample.group_index, set()).add(reward)
    made: dict[float, int] = {}
    for different in by_group.values():
        if len(different) == 1:
            rounded = round(next(iter(different)), 1) or 0.0
            made[rounded] = made.get(rounded, 0) + 1
    return made


def _group_metrics(samples: Any, keys: Any, rewards: Any, settings: FoldSettings) -> dict[str, Number]:
    groups = {sample.group_index for sample in samples} - {None}
    if not groups:
        return {}
    made: dict[str, Number] = {}
    flat = _flat_groups(samples, rewards)
    for place, reward in enumerate(sorted(flat, key=lambda reward: (-flat[reward], reward))):
        name = f"zero_std/count_{reward}" if place < settings.max_names else "zero_std/count_other"
        made[name] = made.get(name, 0) + flat[reward]
    made["zero_std/all_zero_percentage"] = flat.get(0.0, 0) / len(groups)
    made["zero_std/all_one_percentage"] = flat.get(1.0, 0) / len(groups)
    by_group: dict[Any, list[float]] = {}
    for key, score in _finite_scores(samples, keys, rewards, settings).items():
        if key[1] is not None:
            by_group.setdefault(key[1], []).append(score)
    several = [listed for listed in by_group.values() if len(listed) >= 2]
    if several:
        made["episode_zero_std_ratio"] = mean(len(set(listed)) == 1 for listed in several)
    if by_group:
        made["episode_reward_std_within_group"] = mean(map(std, by_group.values()))
        passes = {group: sum(score >= settings.pass_threshold for score in by_group[group]) for group in by_group}
        k = 1
        while any(len(listed) >= k for listed in by_group.values()):
            shares = [
                1 - Fraction(math.comb(len(listed) - passes[group], k), math.comb(len(listed), k))
                for group, listed in by_group.items()
                if len(listed) >= k
            ]
            made[f"passrate/pass@{k}"] = float(sum(shares) / len(shares))
            k *= 2
        made["solve_none_ratio"] = mean(passes[group] == 0 for group in by_group)
        made["solve_all_ratio"] = mean(passes[group] == len(by_group[group]) for group in by_group)
    return made


def _length_metrics(samples: Any, keys: Any) -> dict[str, Number]:
    made: dict[str, Number] = {}
    lengths = []
    by_rollout: dict[Any, int] = {}
    invalid = 0
    for sample, key in zip(samples, keys, strict=True):
        sent = sample.response_length
        if sample.effective_response_length is not None:
            sent = sample.effective_response_length
        if sent is None:
            continue
        if not 0 <= sent <= LARGEST:
            invalid += 1
            continue
        lengths.append(sent)
        by_rollout[key] = by_rollout.get(key, 0) + sent
    if invalid:
        made["invalid_response_lengths"] = invalid
    if lengths:
        made |= {f"response_len/{name}": number for name, number in _statistics(lengths).items()}
        made["episode_response_len_mean"] = mean(by_rollout.values())
        made["episode_response_len_max"] = max(by_rollout.values())
    return made


def _statistics(numbers: Sequence[int]) -> dict[str, Number]:
    return {"mean": mean(numbers), "median": percentile(numbers, 50), "max": max(numbers), "min": min(numbers)}


def _status_metrics(samples: Any, keys: Any) -> dict[str, Number]:
    if all(sample.status is None for sample in samples):
        return {}
    made: dict[str, Number] = {
        f"{status}_ratio": mean(sample.status == status for sample in samples)
        for status in ("truncated", "aborted", "failed")
    }
    truncated = {key for sample, key in zip(samples, keys, strict=True) if sample.status == "truncated"}
    made["episode_truncated_ratio"] = len(truncated) / len(set(keys))
    return made


def _version_metrics(samples: Any) -> dict[str, Number]:
    made: dict[str, Number] = {}
    oldest = []
    mixed = invalid = 0
    for sample in samples:
        versions = [version for version in sample.weight_versions or [] if version is not None]
        mixed += len(set(versions)) > 1
        numeric = [
            int(version)
            for version in versions
            if isinstance(version, int) or (version and all(sign in "0123456789" for sign in version))
        ]
        valid = [version for version in numeric if 0 <= version <= LARGEST]
        invalid += len(valid) < len(numeric)
        if valid:
            oldest.append(min(valid))
    if invalid:
        made["invalid_weight_versions"] = invalid
    if oldest:
        made |= {f"weight_version/{name}": number for name, number in _statistics(oldest).items()}
    if any(sample.weight_versions for sample in samples):
        made["weight_version/mixed_version_ratio"] = mixed / len(samples)
    return made


def _places(names: Iterable[str], max_names: int) -> dict[str, str]:
    """Returns the name under which each name is published, for names that are short and printable."""
    ordered = sorted(set(names) - {"other"})
    return {name: name if place < max_names else "other" for place, name in enumerate(ordered)} | {"other": "other"}


def _observed(samples: Any, keys: Any, field: str, settings: FoldSettings) -> Any:
    """Returns [(key, number)] by published name, and what was left out or folded."""
    sent = []
    invalid = nonfinite = 0
    for sample, key in zip(samples, keys, strict=True):
        by_name = getattr(sample, field)
        for name, value in by_name.items() if isinstance(by_name, dict) else ():
            number = as_number(value)
            if number is None:
                invalid += value is not None
            elif math.isinf(number):
                nonfinite += 1
            else:
                sent.append((name, key, number))
    places = _places((name for name, _, _ in sent), settings.max_names)
    observed: dict[str, list[tuple[Any, float]]] = {}
    for name, key, number in sent:
        observed.setdefault(places[name], []).append((key, number))
    folded = sum(places[name] != name for name, _, _ in sent)
    return observed, invalid, nonfinite, folded


def _mean_of_rollouts(observed: Iterable[tuple[Any, float]]) -> float:
    by_rollout: dict[Any, list[float]] = {}
    for key, number in observed:
        by_rollout.setdefault(key, []).append(number)
    return mean(map(mean, by_rollout.values()))


def _components(made: dict[str, Number], samples: Any, keys: Any, settings: FoldSettings) -> int:
    observed, _, nonfinite, folded = _observed(samples, keys, "reward", settings)
    for name, numbers in observed.items():
        made[f"reward/{name}"] = _mean_of_rollouts(numbers)
    if nonfinite:
        made["nonfinite_reward_components"] = nonfinite
    return int(folded)


def _values(made: dict[str, Number], samples: Any, keys: Any, settings: FoldSettings) -> int:
    observed, invalid, nonfinite, folded = _observed(samples, keys, "values", settings)
    for name, numbers in observed.items():
        made[name] = mean(number for _, number in numbers)
        made[f"episode_{name}"] = _mean_of_rollouts(numbers)
    if invalid + nonfinite:
        made["invalid_values"] = invalid + nonfinite
    return int(folded)


def _sources(made: dict[str, Number], samples: Any, keys: Any, rewards: Any, settings: FoldSettings) -> int:
    places = _places((sample.data_source for sample in samples if sample.data_source is not None), settings.max_names)
    folded = 0
    for place in set(places.values()):
        chosen = [i for i, sample in enumerate(samples) if places.get(sample.data_source) == place]
        if not chosen:
            continue
        own_samples, own_keys, own_rewards = ([listed[i] for i in chosen] for listed in (samples, keys, rewards))
        by_rollout = _finite_scores(own_samples, own_keys, own_rewards, settings)
        made[f"by_data_source/{place}/episode_raw_reward"] = mean(by_rollout.values())
        made[f"by_data_source/{place}/num_training_samples"] = len(chosen)
        made[f"by_data_source/{place}/num_rollouts"] = len(set(own_keys))
        folded += sum(sample.data_source != place for sample in own_samples)
    return folded


def _dropped(made: dict[str, Number], dropped: Mapping[str, int], settings: FoldSettings) -> int:
    if not dropped:
        return 0
    places = _places(dropped, settings.max_names)
    for reason, count in dropped.items():
        key = f"dropped/{places[reason]}"
        made[key] = made.get(key, 0) + count
    made["dropped_total"] = sum(dropped.values())
    return sum(places[reason] != reason for reason in dropped)
