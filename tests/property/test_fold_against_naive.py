"""The fold against a model that tells the life of steps in the plainest way."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest

from stream_metrics.core.settings import FoldSettings
from support.naive_windows import tell
from support.random_logs import random_log

SEEDS = 1600
CHUNKS = 8
FIELDS = ("run_id", "scope", "attempt", "step", "complete", "reason", "late_samples")


def flat(result: Any) -> dict[str, Any]:
    made = {name: getattr(result, name) for name in FIELDS}
    for key, value in result.metrics.items():
        made[key.removeprefix(result.scope + "/")] = value
    return made


def assert_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        if isinstance(value, float):
            assert math.isclose(got[name], value, rel_tol=1e-12, abs_tol=1e-12), name
        else:
            assert got[name] == value, name


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_log_gives_what_the_plainest_reading_of_the_design_gives(chunk):
    for seed in range(chunk, SEEDS, CHUNKS):
        rng = random.Random(seed)
        settings = FoldSettings(
            late=rng.choice(["correct", "correct", "dead_letter"]), remember_steps=rng.choice([1, 2, 3, 5])
        )
        log = random_log(rng)
        told, outcome = tell(log.records, settings), log.fold(settings)
        try:
            on_time = [flat(result) for result in outcome.results if not result.correction]
            assert len(on_time) == len(told.on_time)
            for got, want in zip(on_time, told.on_time, strict=True):
                assert_same(got, want)
            corrections = {
                ((one.run_id, one.scope), one.attempt, one.step): flat(one) for one in outcome.results if one.correction
            }
            assert corrections.keys() == told.corrections.keys()
            for key, want in told.corrections.items():
                assert_same(corrections[key], want)
            assert outcome.dead_letters == told.dead_letters
        except AssertionError as error:
            error.add_note(f"log with seed {seed}: {[msgspec.to_builtins(r.value()) for r in log.records]}")
            raise
