"""Whatever bytes a record holds, the fold takes it, counts it, or sets it aside; it never raises and never stops."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_metrics.core.effects import Publish, SetAside
from stream_metrics.core.fold import Fold
from stream_metrics.core.record import LogRecord
from stream_metrics.core.settings import FoldSettings

REAL = [
    b'{"type":"sample","run_id":"r","step":3,"group_index":1,"rollout_id":"a","reward":0.5,"metadata":{"raw_reward":1}}',
    b'{"type":"sample","step":3,"index":2,"reward":{"a":1,"b":NaN},"values":{"turns":3},"weight_versions":[1,"2"]}',
    b'{"type":"samples","step":3,"samples":[{"reward":1,"sample_id":"x"},{"reward":true,"position":-1}]}',
    b'{"type":"close","step":3,"producers":2,"producer":"p","expected_samples":2,"dropped":{"aborted":1}}',
    b'{"type":"close","step":3,"reason":"timeout","seen_offset":9}',
    msgspec.msgpack.encode({"type": "sample", "step": 3, "reward": 1.5, "status": "truncated", "response_length": 7}),
]
PIECES = [
    b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"9" * 5000, b"-1", b"null", b"true", b'""', b"[" * 2000,
    b'{"a":' * 500, b"\xff\xfe", b"\\ud800", b"\x00", b'"' + b"x" * 3000 + b'"', b"9007199254740993", b"[]", b"{}",
    b"1.0",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A real event with some stretches of it replaced, cut or doubled."""
    value = draw(st.sampled_from(REAL))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(value)))
        end = draw(st.integers(at, min(len(value), at + 12)))
        value = value[:at] + draw(st.sampled_from(PIECES) | st.binary(max_size=6)) + value[end:]
    return value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "run_id", "scope", "step", "attempt", "group_index", "rollout_id", "position", "index", "sample_id", "reward",
    "metadata", "response_length", "status", "data_source", "weight_versions", "values", "samples", "producer",
    "producers", "expected_samples", "dropped", "reason", "seen_offset",
]  # fmt: skip
odd_events = st.builds(
    lambda kind, fields: json.dumps({"step": 1, **fields, "type": kind}).encode(),
    st.sampled_from(["sample", "sample", "samples", "close", "close", "step_metrics"]),
    st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5),
)
values = st.none() | mutated() | odd_events | st.binary(max_size=40)
headers = st.sampled_from(
    [None, [], [("content-type", b"application/msgpack")], [("content-type", None)], [("Content-Type", b"\xff")]]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(values, headers, st.integers(-1, 2**62)), max_size=12))
def test_every_record_is_taken_counted_or_set_aside(records):
    fold = Fold(FoldSettings(max_samples=20, reward_key="a"), "t", 0)
    fold.feed(
        [
            LogRecord(value=value, headers=header, offset=offset, timestamp=(1, unix_ms))
            for offset, (value, header, unix_ms) in enumerate(records)
        ]
    )
    effects = fold.take_effects() + fold.take_corrections()
    set_aside = [effect.record.offset() for effect in effects if isinstance(effect, SetAside)]
    assert len(set_aside) == len(set(set_aside))
    assert fold.held_samples <= 20
    for effect in effects:
        if isinstance(effect, Publish):
            metrics = json.loads(msgspec.json.encode(effect.result))["metrics"]
            assert all(type(number) in (int, float) for number in metrics.values()), metrics
    assert len(fold.note(len(records)).encode()) < 4096


def test_ten_megabytes_in_a_record_are_an_event_like_any_other():
    text = b"x" * 10_000_000
    fold = Fold(FoldSettings(), "t", 0)
    fold.feed(
        [
            LogRecord(value=b'{"type":"sample","step":0,"reward":1,"prompt":"' + text + b'"}', offset=0),
            LogRecord(value=b'{"type":"sample","step":0,"reward":1,"rollout_id":"' + text + b'"}', offset=1),
            LogRecord(value=b'{"type":"sample","step":0,"run_id":"' + text + b'"}', offset=2),
            LogRecord(value=b'{"type":"close","step":0}', offset=3),
        ]
    )
    published, set_aside = sorted(fold.take_effects(), key=lambda effect: isinstance(effect, SetAside))
    assert isinstance(set_aside, SetAside)
    assert set_aside.record.offset() == 2
    assert isinstance(published, Publish)
    assert published.result.metrics["rollout/num_training_samples"] == 2
