"""Random windows against the naive model, and what must not matter to them."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stream_metrics.core.catalogue import step_metrics
from stream_metrics.core.exact import exact_mean, exact_means, exact_stds, exact_sums
from stream_metrics.core.metrics.groups import pass_at_k
from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import Sample, decode, encode
from support.naive import naive_metrics, published
from support.windows import SETTINGS, assert_same, metrics_of, sample_lists, window_of

DROPPED = st.none() | st.dictionaries(
    st.sampled_from(["too long", "aborted", "other", "filter/std"]), st.integers(0, 9)
)


@given(sample_lists(), SETTINGS, DROPPED)
def test_each_metric_is_what_its_definition_says(
    samples: list[Sample], settings: FoldSettings, dropped: dict[str, int] | None
) -> None:
    want = published(naive_metrics(samples, settings, step=7, dropped=dropped))
    assert_same(metrics_of(samples, settings, dropped=dropped), want, scale=1e6)


@given(sample_lists(), SETTINGS, st.lists(st.integers(0, 8), max_size=12))
def test_how_samples_come_in_rows_changes_nothing(
    samples: list[Sample], settings: FoldSettings, rows: list[int]
) -> None:
    """Bit for bit: the rows are the consumer's batches, and a replay has others."""
    assert metrics_of(samples, settings, rows=rows) == metrics_of(samples, settings)
    assert metrics_of(samples, settings, rows=[1] * len(samples)) == metrics_of(samples, settings)


@given(sample_lists(), SETTINGS, st.randoms(use_true_random=False))
def test_the_order_of_samples_changes_nothing(
    samples: list[Sample], settings: FoldSettings, chance: random.Random
) -> None:
    """Bit for bit, where nothing is defined by order: which sample is first is, and which duplicate stays."""
    for place, sample in enumerate(samples):
        sample.position = place
        sample.sample_id = None
    shuffled = list(samples)
    chance.shuffle(shuffled)
    assert metrics_of(shuffled, settings) == metrics_of(samples, settings)


@given(sample_lists(), SETTINGS)
def test_all_that_is_published_is_finite_and_can_be_read_by_anyone(
    samples: list[Sample], settings: FoldSettings
) -> None:
    made = metrics_of(samples, settings)
    assert all(math.isfinite(number) for number in made.values())
    assert all(abs(number) < 2**53 for number in made.values() if isinstance(number, int))
    assert json.loads(json.dumps(made, allow_nan=False)) == made


@given(sample_lists())
def test_what_was_encoded_and_decoded_gives_the_same(samples: list[Sample]) -> None:
    """Where all of it can be written down as JSON."""
    try:
        values = [encode(sample) for sample in samples]
    except Exception:  # integers past 64 bits, which only other encoders write
        return
    decoded = [decode(value) for value in values]
    if json.dumps([str(sample) for sample in decoded]) == json.dumps([str(sample) for sample in samples]):
        assert metrics_of(decoded) == metrics_of(samples)  # type: ignore[arg-type]


@given(sample_lists(), sample_lists())
def test_a_correction_recomputes_all_of_it(samples: list[Sample], late: list[Sample]) -> None:
    settings = FoldSettings()
    window = window_of(samples)
    step_metrics(window, settings)
    window.add(late)
    assert step_metrics(window, settings) == step_metrics(window_of([*samples, *late]), settings)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
TAME = st.floats(-1e3, 1e3) | st.sampled_from([0.1, 1 / 3, 0.0, 1.0, 1e-9, 5e-324])


@given(st.lists(st.tuples(st.integers(0, 4), FINITE | TAME | TAME)))
def test_sums_are_fsum_s_and_means_never_overflow(pairs: list[tuple[int, float]]) -> None:
    labels = np.array([label for label, _ in pairs], dtype=np.int64)
    values = np.array([value for _, value in pairs], dtype=np.float64)
    sums, means = exact_sums(values, labels, 6), exact_means(values, labels, 6)
    for label in range(6):
        own = [value for other, value in pairs if other == label]
        total = sum(map(Fraction, own))
        try:
            assert sums[label] == float(total)
        except OverflowError:
            assert math.isinf(sums[label])
        assert math.isnan(means[label]) if not own else math.isclose(means[label], total / len(own), rel_tol=1e-15)
    if pairs:
        assert math.isclose(exact_mean(values), sum(map(Fraction, values.tolist())) / len(pairs), rel_tol=1e-15)


@given(st.lists(st.tuples(st.integers(0, 3), FINITE | TAME), min_size=1))
def test_spreads_neither_overflow_nor_vanish(pairs: list[tuple[int, float]]) -> None:
    from support.naive import std

    labels = np.array([label for label, _ in pairs], dtype=np.int64)
    values = np.array([value for _, value in pairs], dtype=np.float64)
    made = exact_stds(values, labels, 4)
    for label in range(4):
        own = [value for other, value in pairs if other == label]
        if own:
            largest = max(map(abs, own))
            assert math.isclose(made[label], std(own), rel_tol=1e-9, abs_tol=largest * 1e-15 + 1e-320)


@given(st.integers(1, 9), st.data())
def test_pass_at_k_counts_the_draws_with_a_pass(n: int, data: Any) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    passes = [place < c for place in range(n)]
    draws = list(combinations(passes, k))
    assert math.isclose(pass_at_k(n, c, k), sum(map(any, draws)) / len(draws), abs_tol=1e-12)


@given(st.integers(1, 3000), st.data())
def test_pass_at_k_is_the_closed_formula(n: int, data: Any) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    want = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert math.isclose(pass_at_k(n, c, k), want, abs_tol=1e-12)
