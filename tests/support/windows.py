"""Windows made without a fold, and random samples to fill them with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from stream_metrics.core.catalogue import step_metrics
from stream_metrics.core.settings import FoldSettings
from stream_metrics.core.window import Window
from stream_metrics.events import Metadata, Sample, SampleFields, StepClose


def window_of(
    samples: Sequence[SampleFields],
    settings: FoldSettings | None = None,
    *,
    dropped: dict[str, int] | None = None,
    rows: Sequence[int] = (),
    scope: str = "rollout",
) -> Window:
    """Returns a window of step 7 that took the samples, in rows of the given lengths and the rest at once."""
    window = Window(settings or FoldSettings(), "run", scope, 0, 7, 0, None)
    rest = list(samples)
    for length in rows:
        window.add(rest[:length])
        rest = rest[length:]
    window.add(rest)
    if dropped is not None:
        window.hear(StepClose(step=7, dropped=dropped))
    return window


def metrics_of(samples: Sequence[SampleFields], settings: FoldSettings | None = None, **more: Any) -> dict[str, Any]:
    """Returns the metrics of the samples' window, by key without scope."""
    settings = settings or FoldSettings()
    window = window_of(samples, settings, **more)
    prefix = f"{window.scope}/"
    made = step_metrics(window, settings)
    assert all(name.startswith(prefix) for name in made)
    return {name.removeprefix(prefix): number for name, number in made.items()}


def assert_same(got: Mapping[str, Any], want: Mapping[str, Any], *, scale: float = 1.0) -> None:
    """Compares metrics: the same names, integers exact, floats to 1e-12 of the scale."""
    assert got.keys() == want.keys(), f"only here: {got.keys() - want.keys()}; only there: {want.keys() - got.keys()}"
    for name, number in want.items():
        if isinstance(number, int) and abs(number) < 2**53:
            assert got[name] == number, f"{name}: {got[name]!r}, expected {number!r}"
        else:
            assert math.isclose(got[name], number, rel_tol=1e-12, abs_tol=1e-12 * scale), (
                f"{name}: {got[name]!r}, expected {number!r}"
            )


NAMES = st.sampled_from(["turns", "cache", "a/b", "with space", "größe", "other", "x"])
ODD_NUMBERS = st.sampled_from(
    [math.nan, math.inf, -math.inf, 10**400, -(10**400), True, False, None, 2**63, -(2**64), "text", [1], {"a": 1}]
)
PLAIN_NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, 0.5, 0.1, -1.0, -0.0, 0.25, 1, 0, True]),
    st.floats(-1e6, 1e6),
    st.integers(-1000, 1000),
)
NUMBERS = st.one_of(PLAIN_NUMBERS, PLAIN_NUMBERS, PLAIN_NUMBERS, ODD_NUMBERS)
INTEGERS = st.one_of(
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(-(2**63) + 1, 2**64),
    st.sampled_from([-1, 2**53 - 1, 2**53, 2**62, 2**70, -(2**70)]),
)


def _reward(number: Any) -> Any:
    # What the decoder would have refused for a reward that is no object: the sample would be no event.
    return number if number is None or isinstance(number, (bool, int, float)) else None


def _some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


VERSIONS = st.one_of(
    INTEGERS, st.sampled_from(["1", "2", "007", "step_3", "", "²", "-1", "12345678901234567", "9" * 40])
)

PROPERTIES: dict[str, st.SearchStrategy[Any]] = {
    "group_index": st.sampled_from([0, 1, 2, "0", "a", None]),
    "rollout_id": st.sampled_from([0, 1, 2, "0", None]),
    "index": st.sampled_from([0, 1, 2, None]),
    "position": _some(st.integers(-5, 20)),
    "sample_id": _some(st.sampled_from([*range(12), "1", "2"])),
    "reward": st.one_of(NUMBERS.map(_reward), NUMBERS.map(_reward), st.dictionaries(NAMES, NUMBERS, max_size=3)),
    "metadata": st.one_of(st.none(), st.none(), NUMBERS.map(lambda number: Metadata(raw_reward=number))),
    "response_length": _some(INTEGERS),
    "effective_response_length": st.one_of(st.none(), st.none(), INTEGERS),
    "status": st.sampled_from([None, "completed", "truncated", "aborted", "failed", "pending", ""]),
    "data_source": _some(NAMES),
    "weight_versions": _some(st.lists(st.none() | VERSIONS, max_size=3)),
    "values": _some(st.dictionaries(NAMES, NUMBERS, max_size=3)),
}


@st.composite
def sample_lists(draw: st.DrawFn, max_size: int = 30) -> list[Sample]:
    """Samples that carry some of all properties, the same set or each its own."""
    used = draw(st.sets(st.sampled_from(sorted(PROPERTIES))) | st.just(set(PROPERTIES)))
    fields = st.fixed_dictionaries({}, optional={name: PROPERTIES[name] for name in sorted(used)})
    if draw(st.booleans()):
        fields = st.fixed_dictionaries({name: PROPERTIES[name] for name in sorted(used)})
    return [Sample(step=7, **made) for made in draw(st.lists(fields, max_size=max_size))]


SETTINGS = st.builds(
    FoldSettings,
    rollout_reward=st.sampled_from(["mean", "mean", "sum", "last", "first", "max"]),
    reward_key=st.sampled_from([None, "turns", "x", "missing"]),
    pass_threshold=st.sampled_from([1.0, 0.5, 0.0]),
    max_names=st.sampled_from([64, 64, 3, 1, 0]),
)
