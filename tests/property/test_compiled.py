"""The compiled part never reads anything else than the decoder; what comes of a log is the same with and without it."""

from __future__ import annotations

import json
import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_metrics.core.fold import Fold
from stream_metrics.core.settings import FoldSettings
from support.compiled import decoded, needs_compiled, read
from support.random_logs import random_log

pytestmark = needs_compiled


def mostly(usual: st.SearchStrategy, odd: st.SearchStrategy) -> st.SearchStrategy:
    return st.integers(0, 19).flatmap(lambda chance: usual if chance else odd)


words = st.sampled_from(["a", "1", "007", "completed", "aborted", "ü", ""])
texts = mostly(words, st.text(max_size=6) | st.sampled_from(["9" * 20, "r" * 513]))
edges = st.sampled_from([2**53 - 1, 2**53, 10**18 - 1, 10**18, 2**63 - 1, 2**64])
integers = mostly(st.integers(-3, 99), st.integers() | edges)
numbers = integers | mostly(st.floats(allow_nan=False, allow_infinity=False), st.floats()) | st.booleans()
anything = st.recursive(
    st.none() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)
FIELDS = {
    "group_index": integers,
    "rollout_id": integers,
    "index": integers | st.none(),
    "position": integers | st.none(),
    "sample_id": integers | texts | st.none(),
    "reward": numbers | st.none(),
    "response_length": integers | st.none(),
    "effective_response_length": integers | st.none(),
    "status": texts | st.none(),
    "weight_versions": st.lists(integers | texts, max_size=3) | st.none(),
    "metadata": st.fixed_dictionaries({}, optional={"raw_reward": numbers, "x": anything}) | st.none(),
    "data_source": mostly(st.none(), texts),
    "values": mostly(st.none(), st.dictionaries(texts, numbers, max_size=2)),
    "extra": anything,
}
ASKED = {"group_index": FIELDS["group_index"], "rollout_id": FIELDS["rollout_id"]}
OPTIONAL = {name: values for name, values in FIELDS.items() if name not in ASKED}
NAMES = {"run_id": texts | st.none(), "scope": texts | st.none(), "attempt": integers | st.none()}


@st.composite
def events(draw: st.DrawFn) -> dict[str, object]:
    """Mostly as producers write them, with one field that may be anything."""
    event = draw(st.fixed_dictionaries({"step": mostly(st.integers(0, 99), integers)}, optional=NAMES))
    sample = st.fixed_dictionaries(ASKED, optional=OPTIONAL)
    if draw(st.booleans()):
        event |= {"type": "sample", **draw(sample)}
    else:
        event |= {"type": "samples", "samples": draw(st.lists(sample, max_size=4))}
    if draw(st.integers(0, 7)) == 0:
        event[draw(st.sampled_from([*FIELDS, *NAMES, "step", "type", "samples"]))] = draw(anything)
    items = draw(st.permutations(list(event.items())))
    return dict(items)


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """An event in one of the ways that there are to write it, now and then with a stretch of it changed."""
    event = draw(events())
    how = draw(st.integers(0, 3))
    try:
        if how == 0:
            value = msgspec.msgpack.encode(event)
        elif how == 1:
            value = msgspec.json.encode(event)
        else:
            value = json.dumps(event, ensure_ascii=how == 2, indent=draw(st.sampled_from([None, 1]))).encode()
    except (ValueError, OverflowError):
        value = json.dumps(event).encode("utf-8", "replace")
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(value)))
        end = draw(st.integers(at, min(len(value), at + 4)))
        value = value[:at] + draw(st.binary(max_size=3)) + value[end:]
    return value


@settings(max_examples=3_000, deadline=None)
@given(written())
def test_what_it_reads_is_what_the_decoder_reads(value):
    got = read(value)
    if got is not None:
        want = decoded(value)
        assert got == want
        assert list(map(type, got.ids)) == list(map(type, want.ids))


@settings(max_examples=2_000, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False) | st.decimals(allow_nan=False, allow_infinity=False))
def test_numbers_are_the_same_to_the_last_bit(number):
    value = b'{"type":"sample","step":0,"group_index":0,"rollout_id":0,"reward":%b}' % f"{number}".encode()
    got = read(value)
    assert got is None or got == decoded(value)
    if isinstance(number, float) and number not in (0.0, -0.0):
        assert got is not None


def test_a_log_gives_the_same_with_and_without_it():
    read_at_all = 0
    for seed in range(600):
        rng = random.Random(seed)
        log = random_log(rng)
        options = FoldSettings(
            late=rng.choice(["correct", "dead_letter"]),
            remember_records=rng.choice([8, 40, 1_000]),
            max_samples=rng.choice([10, 1_000]),
            rollout_reward=rng.choice(["mean", "first", "last"]),
        )
        told = []
        for is_compiled in (True, False):
            fold = Fold(options, log.topic, log.partition, is_compiled=is_compiled)
            effects = []
            for start in range(0, len(log.records), 30):
                fold.feed(log.records[start : start + 30])
                effects += fold.take_effects()
            effects += fold.take_corrections()
            counts = {name: count for name, count in fold.counts.items() if count}
            told.append((effects, fold.note(log.next_offset).encode(), counts))
        assert told[0] == told[1], f"log with seed {seed}"
        read_at_all += sum(read(record.value()) is not None for record in log.records if record.value())
    assert read_at_all > 3_000
