from __future__ import annotations

import math
import random

from stream_metrics.core.named import MAX_NAME_LENGTH, NamedNumbers, NamedSamples, fold_counts, public_name


def test_ordinary_names_are_published_as_they_are() -> None:
    for name in ("turns", "a/b", "openai/gsm8k", "with space", "größe", "数学", "x" * MAX_NAME_LENGTH):
        assert public_name(name) == name


def test_odd_names_are_cut_and_told_apart() -> None:
    odd = ["", "x" * 129, "x" * 10_000, "x" * 10_001, "a\nb", "a\tb", "a\x00b", "a\ud800b", "a\u202eb"]
    made = [public_name(name) for name in odd]
    assert len(set(made)) == len(odd)
    assert all(name.isprintable() and 0 < len(name) <= MAX_NAME_LENGTH for name in made)
    assert made[4].startswith("a_b~")
    assert made[1] == public_name("x" * 129)


def test_names_past_the_limit_are_other_whatever_the_order() -> None:
    names = [f"name {number:03}" for number in range(30)]
    for seed in range(5):
        chance = random.Random(seed)
        order = names * 2
        chance.shuffle(order)
        named = NamedNumbers(10)
        for sample, name in enumerate(order):
            named.take_numbers([{name: float(name[-3:])}], sample)
        items = dict(named.items())
        assert list(items) == [*names[:10], "other"]
        assert named.folded == 40
        assert sorted(items["other"].value) == sorted([float(number) for number in range(10, 30)] * 2)
        assert all(sorted(items[name].value) == [float(name[-3:])] * 2 for name in names[:10])


def test_other_is_where_the_rest_goes_and_a_name_like_any() -> None:
    named = NamedNumbers(1)
    named.take_numbers([{"other": 1.0, "a": 2.0, "b": 3.0}], 0)
    assert {name: kept.value.tolist() for name, kept in named.items()} == {"a": [2.0], "other": [1.0, 3.0]}
    assert named.folded == 1


def test_no_names_at_all() -> None:
    named = NamedNumbers(0)
    named.take_numbers([{"a": 1.0}, {"a": 2.0}], 0)
    assert {name: kept.value.tolist() for name, kept in named.items()} == {"other": [1.0, 2.0]}
    assert named.folded == 2


def test_what_is_no_finite_number_is_counted_and_takes_no_place() -> None:
    named = NamedNumbers(64)
    named.take_numbers([{"a": math.nan, "b": "text", "c": None, "d": [1], "e": 10**400, "f": True}], 0)
    assert {name: kept.value.tolist() for name, kept in named.items()} == {"f": [1.0]}
    assert (named.invalid, named.nonfinite) == (2, 2)


def test_a_row_alike_and_a_row_of_odds_and_ends_give_the_same() -> None:
    rows = [
        [{"a": 1.0, "b": 2}, {"a": 3.0, "b": True}],
        [{"a": 1.0}, None, {}],
        [{"a": 1.0, "b": 1.0}, {"b": 1.0, "c": 1.0}],
        [{"a": 10**400}, {"a": -(10**400)}],
        [{"a": 1.7e308}, {"a": 1.7e308}],
        [{"a": 1.0}, {"a": None}],
        [{"a": 1.0}, {"a": math.nan}],
        [{"a": 1.0, "b": 1.0}, {"a": "text", "b": 2.0}],
    ]
    together, apart = NamedNumbers(64), NamedNumbers(64)
    start = 0
    for row in rows:
        together.take_numbers(row, start)
        for place, one in enumerate(row, start):
            apart.take_numbers([one], place)
        start += len(row)
    assert [(name, kept.samples(), kept.value) for name, kept in together.items()] == [
        (name, kept.samples(), kept.value) for name, kept in apart.items()
    ]
    assert (together.invalid, together.nonfinite) == (apart.invalid, apart.nonfinite) == (1, 3)


def test_counts_are_folded_by_the_same_rule() -> None:
    assert fold_counts({"b": 1, "a": 2, "other": 3, "c": 4}, 2) == ({"a": 2, "b": 1, "other": 7}, 1)
    assert fold_counts({}, 2) == ({}, 0)
    made, folded = fold_counts({"x" * 10_000: 1}, 64)
    assert folded == 0
    assert all(len(name) <= MAX_NAME_LENGTH for name in made)


def test_samples_by_name_whatever_the_order() -> None:
    names: list[str | None] = [f"{number:02}" for number in range(20)] * 2 + [None, "other"]
    for seed in range(5):
        chance = random.Random(seed)
        order = list(names)
        chance.shuffle(order)
        together, apart = NamedSamples(5, 3), NamedSamples(5, 3)
        together.extend(order)
        for name in order:
            apart.extend([name])
        for named in (together, apart):
            items = {name: samples.tolist() for name, samples in named.items()}
            assert list(items) == ["00", "01", "02", "03", "04", "other"]
            for place in ("00", "04"):
                assert items[place] == [sample for sample, name in enumerate(order, 3) if name == place]
            assert items["other"] == [
                sample for sample, name in enumerate(order, 3) if name is not None and not name < "05"
            ]
            assert named.folded == 30


def test_samples_without_places() -> None:
    named = NamedSamples(0, 1)
    named.extend(["a", None, "other"])
    assert {name: samples.tolist() for name, samples in named.items()} == {"other": [1, 3]}
    assert named.folded == 1
