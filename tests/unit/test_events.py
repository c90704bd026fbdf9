"""The wire contract: what is an event, what isn't, and that no value makes the decoder do anything else than say so."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import tracemalloc
from typing import Any

import msgspec
import pytest

from stream_metrics.core.named import NOT_FINITE, number_of
from stream_metrics.events import (
    MAX_INTEGER,
    EventError,
    LogPlace,
    Sample,
    SampleBatch,
    StepClose,
    StepMetrics,
    decode,
    decode_result,
    encode,
    json_schemas,
)

SAMPLE = b'{"type":"sample","step":1%s}'


def _sample(rest: bytes = b"") -> bytes:
    return SAMPLE % (b"," + rest if rest else b"")


def _decoded(value: bytes) -> Sample:
    event = decode(value)
    assert isinstance(event, Sample)
    return event


def _refusal(value: bytes) -> str:
    with pytest.raises(EventError) as caught:
        decode(value)
    return str(caught.value)


# --- what is accepted ------------------------------------------------------------------------------------------------


def test_a_sample_needs_no_more_than_a_type_and_a_step() -> None:
    event = _decoded(b'{"type":"sample","step":3}')
    assert (event.step, event.run_id, event.scope, event.attempt) == (3, "default", "rollout", 0)
    assert all(getattr(event, name) is None for name in ("group_index", "rollout_id", "index", "position", "reward"))


def test_every_field_of_a_sample_arrives_as_it_was_sent() -> None:
    sent: dict[str, Any] = {
        "type": "sample",
        "step": 7,
        "run_id": "r",
        "scope": "eval/aime24",
        "attempt": 2,
        "group_index": "g",
        "rollout_id": 10,
        "position": 4,
        "index": 5,
        "sample_id": "s",
        "reward": {"a": 1.5},
        "metadata": {"raw_reward": 0.25, "other": [1, {"x": None}]},
        "response_length": 100,
        "effective_response_length": 90,
        "status": "truncated",
        "data_source": "math",
        "weight_versions": [1, "v2"],
        "values": {"entropy": 0.5},
    }
    got = msgspec.to_builtins(_decoded(json.dumps(sent).encode()))
    sent["metadata"] = {"raw_reward": 0.25}  # the rest of it isn't read
    assert got == sent


def test_a_batch_and_a_close_marker_arrive_as_they_were_sent() -> None:
    batch = decode(b'{"type":"samples","step":2,"run_id":"r","samples":[{"index":1,"reward":1},{}]}')
    assert isinstance(batch, SampleBatch)
    assert [(one.index, one.reward) for one in batch.samples] == [(1, 1.0), (None, None)]
    marker = decode(
        b'{"type":"close","step":2,"producer":"p","producers":3,"expected_samples":0,"dropped":{"filtered":4},'
        b'"reason":"timeout","seen_offset":17}'
    )
    assert isinstance(marker, StepClose)
    assert (marker.producer, marker.producers, marker.expected_samples, marker.dropped) == ("p", 3, 0, {"filtered": 4})
    assert (marker.reason, marker.seen_offset) == ("timeout", 17)


def test_an_empty_batch_is_an_event() -> None:
    batch = decode(b'{"type":"samples","step":2,"samples":[]}')
    assert isinstance(batch, SampleBatch) and batch.samples == []


_REQUIRED = {"step", "samples", "type"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, field.encode_name)
        for kind in (Sample, SampleBatch, StepClose)
        for field in msgspec.structs.fields(kind)
        if field.name not in _REQUIRED
    ],
)
def test_null_stands_for_absent_in_every_optional_field(kind: type[Any], name: str) -> None:
    tag = kind.__struct_config__.tag
    base = {"type": tag, "step": 1} | ({"samples": []} if tag == "samples" else {})
    for dump in (msgspec.json.encode, msgspec.msgpack.encode):
        event = decode(dump({**base, name: None}))
        without = decode(dump(base))
        assert getattr(event, name) is None or getattr(event, name) == getattr(without, name)


@pytest.mark.parametrize("name", [field.encode_name for field in msgspec.structs.fields(Sample)])
def test_null_stands_for_absent_in_every_field_of_a_batch_item(name: str) -> None:
    if name in ("step", "run_id", "scope", "attempt"):
        return
    batch = decode(msgspec.json.encode({"type": "samples", "step": 1, "samples": [{name: None}]}))
    assert isinstance(batch, SampleBatch)
    assert getattr(batch.samples[0], name) is None


def test_a_null_raw_reward_reward_component_or_weight_version_loses_no_sample() -> None:
    assert _decoded(_sample(b'"weight_versions":[1,null]')).weight_versions == [1, None]
    assert _decoded(_sample(b'"metadata":{"raw_reward":null}')).metadata is not None
    assert _decoded(_sample(b'"reward":{"a":null}')).reward == {"a": None}
    assert _decoded(_sample(b'"metadata":{"raw_reward":"good"}')).metadata is not None


def test_unknown_fields_are_skipped_whatever_they_hold() -> None:
    assert _decoded(_sample(b'"more":{"deep":[1,[2,{"x":"y"}]]},"n":123456789012345678901234567890')).step == 1


def test_integers_and_texts_are_different_identifiers() -> None:
    assert _decoded(_sample(b'"rollout_id":10')).rollout_id == 10
    assert _decoded(_sample(b'"rollout_id":"10"')).rollout_id == "10"


def test_true_and_false_are_rewards() -> None:
    assert _decoded(_sample(b'"reward":true')).reward is True
    assert _decoded(_sample(b'"reward":false')).reward is False


def test_space_around_a_value_changes_nothing() -> None:
    assert _decoded(b' \r\n\t{"type":"sample","step":1} \n').step == 1


def test_NUL_and_empty_text_are_names_like_any_other() -> None:
    assert _decoded(_sample(rb'"run_id":"a\u0000b"')).run_id == "a\x00b"
    assert _decoded(_sample(b'"rollout_id":""')).rollout_id == ""
    assert _decoded(_sample(b'"run_id":""')).run_id == ""


def test_a_pair_of_surrogates_is_the_sign_it_stands_for() -> None:
    assert _decoded(_sample(rb'"rollout_id":"\ud83d\ude00"')).rollout_id == "😀"
    assert _decoded(_sample(rb'"rollout_id":"\ud83d\ude00","reward":NaN')).rollout_id == "😀"


def test_a_rollout_id_of_a_megabyte_is_an_identifier() -> None:
    assert _decoded(_sample(b'"rollout_id":"%s"' % (b"x" * 1_000_000))).rollout_id == "x" * 1_000_000


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"NaN", math.nan),
        (b"Infinity", math.inf),
        (b"-Infinity", -math.inf),
        (b"1e400", math.inf),
        (b"-1e400", -math.inf),
        (b"9" * 309, math.inf),
        (b"-" + b"9" * 309, -math.inf),
        (b"9" * 5_000, math.inf),  # more digits than Python makes an int of
    ],
)
def test_what_a_double_does_not_hold_is_accepted_and_shows_as_what_it_is(text: bytes, expected: float) -> None:
    reward = _decoded(_sample(b'"reward":' + text)).reward
    assert isinstance(reward, float)
    assert reward == expected or (math.isnan(reward) and math.isnan(expected))
    metadata = _decoded(_sample(b'"metadata":{"raw_reward":%s}' % text)).metadata
    assert metadata is not None and number_of(metadata.raw_reward) == NOT_FINITE
    component = _decoded(_sample(b'"reward":{"a":%s}' % text)).reward
    assert isinstance(component, dict) and number_of(component["a"]) == NOT_FINITE


def test_python_writes_what_is_read_back() -> None:
    text = json.dumps({"type": "sample", "step": 1, "reward": math.nan, "values": {"a": math.inf, "b": -math.inf}})
    event = _decoded(text.encode())
    assert isinstance(event.reward, float) and math.isnan(event.reward)
    assert event.values == {"a": math.inf, "b": -math.inf}


def test_MessagePack_carries_what_a_double_holds_beside_numbers() -> None:
    value = msgspec.msgpack.encode({"type": "sample", "step": 1, "reward": math.nan, "values": {"a": math.inf}})
    event = _decoded(value)
    assert isinstance(event.reward, float) and math.isnan(event.reward)
    assert event.values == {"a": math.inf}


def test_integers_past_64_bits_stay_exact_where_they_are_identifiers() -> None:
    big = 123456789012345678901234567890
    assert _decoded(_sample(b'"rollout_id":%d,"index":%d,"sample_id":%d' % (big, big, -big))).rollout_id == big
    assert _decoded(_sample(b'"rollout_id":%d,"reward":NaN' % big)).rollout_id == big


def test_memory_stays_as_it_is_whatever_integers_come() -> None:
    """Where the library kept a reference of each, 300 kB would be left."""
    taken = [_sample(b'"rollout_id":1234567890123456789012345')]
    refused = [b'{"type":"sample","step":1234567890123456789012345}', _sample(b'"attempt":%d' % 10**24)]

    def decode_often() -> int:
        for _ in range(3_000):
            for value in taken:
                decode(value)
            for value in refused:
                with contextlib.suppress(EventError):
                    decode(value)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = decode_often()
        assert decode_often() - before < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", [0, 1, 2**31, 2**53 - 2, MAX_INTEGER])
def test_a_step_within_its_bounds_is_exact(number: int) -> None:
    assert decode(b'{"type":"sample","step":%d,"attempt":%d}' % (number, number)).step == number
    assert decode(b'{"type":"sample","step":%d,"reward":NaN}' % number).step == number


@pytest.mark.parametrize(
    "text",
    [
        b"-1",
        b"9007199254740992",
        b"9007199254740993",
        b"9223372036854775808",
        b"18446744073709551616",
        b"19933688932870350000",
        b"9" * 400,
        b"9" * 5_000,
        b"1.0",
        b"1.5",
        b"1e0",
        b"1e400",
        b"NaN",
        b"Infinity",
        b"true",
        b"false",
        b"null",
        b'"1"',
        b"[]",
        b"{}",
        b"01",
        b"0x1",
        b"1_0",
        b"+1",
    ],
)
def test_a_step_outside_its_bounds_or_of_another_kind_is_refused_and_never_another_step(text: bytes) -> None:
    for kind in (b"sample", b"close"):
        _refusal(b'{"type":"%s","step":%s}' % (kind, text))
        _refusal(b'{"type":"%s","step":%s,"unknown":NaN}' % (kind, text))
    if text != b"null":
        _refusal(b'{"type":"sample","step":1,"attempt":%s}' % text)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"null",
        b"true",
        b"1",
        b'"sample"',
        b"[]",
        b"{}",
        b'{"step":1}',
        b'{"type":"sample"}',
        b'{"type":"other","step":1}',
        b'{"type":"step_metrics","step":1}',
        b'{"type":1,"step":1}',
        b'{"type":null,"step":1}',
        b"not json at all",
        b'{"type":"sample","step":1',
        b'{"type":"sample","step":1,}',
        b"{'type':'sample','step':1}",
        b'// comment\n{"type":"sample","step":1}',
        b'\xef\xbb\xbf{"type":"sample","step":1}',
        '{"type":"sample","step":1}'.encode("utf-16"),
        '{"type":"sample","step":1}'.encode("utf-32"),
        b'{"type":"sample","step":1}x',
        b'{"type":"sample","step":1}\x00',
        b'{"type":"sample","step":1}{"type":"sample","step":1}',
        b'{"type":"sample","step":1}\n{"type":"sample","step":1}',
        b'\x00\x00\x00\x00\x01{"type":"sample","step":1}',  # the prefix of a schema registry
        b"\xda\x00\x01x",  # MessagePack, but no map
        b"\x00" * 100,
        b"\xff" * 100,
    ],
)
def test_what_is_no_event_is_refused_with_a_reason(value: bytes) -> None:
    assert _refusal(value)


@pytest.mark.parametrize(
    "field",
    [
        b'"reward":"0.5"',
        b'"reward":[1]',
        b'"reward":nan',
        b'"reward":inf',
        b'"reward":.5',
        b'"reward":0x10',
        b'"group_index":1.5',
        b'"rollout_id":true',
        b'"rollout_id":1.0',
        b'"rollout_id":{}',
        b'"index":"1"',
        b'"position":1.5',
        b'"sample_id":[]',
        b'"metadata":[]',
        b'"metadata":"x"',
        b'"run_id":1',
        b'"scope":true',
        b'"status":1',
        b'"data_source":1',
        b'"weight_versions":1',
        b'"weight_versions":[1.5]',
        b'"response_length":"10"',
        b'"values":[]',
        b'"run_id":"a\nb"',
    ],
)
def test_a_field_of_another_kind_refuses_the_whole_sample_in_both_decoders(field: bytes) -> None:
    assert _refusal(_sample(field))
    assert _refusal(_sample(field + b',"unknown":NaN'))


def test_names_have_a_longest_length() -> None:
    for name in (b"run_id", b"scope"):
        assert decode(_sample(b'"%s":"%s"' % (name, b"x" * 512)))
        assert _refusal(_sample(b'"%s":"%s"' % (name, b"x" * 513)))


@pytest.mark.parametrize(
    "rest",
    [
        b'"producers":0',
        b'"producers":-1',
        b'"producers":1.0',
        b'"expected_samples":-1',
        b'"expected_samples":true',
        b'"expected_samples":9007199254740992',
        b'"dropped":{"a":-1}',
        b'"dropped":{"a":"1"}',
        b'"dropped":[]',
        b'"reason":"because"',
        b'"reason":"evicted"',
        b'"producer":1',
    ],
)
def test_a_close_marker_that_cannot_be_meant_is_refused(rest: bytes) -> None:
    assert _refusal(b'{"type":"close","step":1,%s}' % rest)


@pytest.mark.parametrize("item", [b'{"reward":"x"}', b"null", b"1", b'{"index":true}'])
def test_one_bad_item_refuses_the_whole_batch_and_is_named(item: bytes) -> None:
    assert "$.samples[1]" in _refusal(b'{"type":"samples","step":1,"samples":[{},%s,{}]}' % item)
    assert "$.samples[1]" in _refusal(b'{"type":"samples","step":1,"samples":[{"reward":NaN},%s,{}]}' % item)


@pytest.mark.parametrize("value", [b'{"type":"samples","step":1}', b'{"type":"samples","step":1,"samples":null}'])
def test_a_batch_without_its_list_is_refused(value: bytes) -> None:
    assert _refusal(value)


# --- names given twice -----------------------------------------------------------------------------------------------


def test_of_a_name_given_twice_the_last_counts_in_both_decoders() -> None:
    assert _decoded(_sample(b'"reward":1,"reward":9')).reward == 9
    assert _decoded(_sample(b'"reward":1,"reward":9,"unknown":NaN')).reward == 9
    assert decode(b'{"type":"sample","step":1,"step":2}').step == 2
    assert decode(b'{"type":"sample","step":1,"step":2,"unknown":NaN}').step == 2


def test_two_different_types_are_refused_in_both_decoders() -> None:
    assert _refusal(b'{"type":"sample","type":"close","step":1}')
    assert _refusal(b'{"type":"sample","step":1,"reward":NaN,"type":"close"}')
    assert decode(b'{"type":"sample","step":1,"type":"sample"}')
    assert decode(b'{"type":"sample","step":1,"type":"sample","reward":NaN}')


# --- text that isn't text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("also", [b"", b',"reward":NaN'])
@pytest.mark.parametrize(
    "field",
    [
        rb'"run_id":"\ud800"',
        rb'"run_id":"\udc00x"',
        rb'"rollout_id":"\ud800"',
        rb'"values":{"\ud800":1}',
        rb'"reward":{"\ud800":1}',
        rb'"weight_versions":["\ud800"]',
        rb'"weight_versions":[1,"\udfff"]',
        b'"run_id":"\xff"',
        b'"rollout_id":"\xc0\xaf"',
        b'"rollout_id":"\xed\xa0\x80"',  # a surrogate written as if it were a sign
        b'"data_source":"\xf5\x80\x80\x80"',
    ],
)
def test_text_that_is_no_UTF8_is_refused_in_both_decoders(field: bytes, also: bytes) -> None:
    if b"reward" in field and also:
        also = b',"unknown":NaN'
    assert _refusal(_sample(field + also))


# --- values made to hurt ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        _sample(b'"unknown":' + b"[" * 100_000 + b"]" * 100_000),
        _sample(b'"unknown":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        _sample(b'"unknown":' + b"[" * 100_000 + b"NaN" + b"]" * 100_000),
        _sample(b'"unknown":' + b'{"a":' * 100_000 + b"NaN" + b"}" * 100_000),
        _sample(b'"reward":{"a":' + b"[" * 100_000 + b"NaN"),
        b"[" * 1_000_000,
        b'{"type":' * 100_000,
    ],
)
def test_deep_nesting_is_a_refusal_and_no_crash(value: bytes) -> None:
    assert _refusal(value)


def test_deep_nesting_says_what_is_wrong() -> None:
    assert _refusal(_sample(b'"unknown":' + b"[" * 100_000 + b"]" * 100_000)) == "nested too deeply"


def test_a_refusal_of_a_large_value_is_short() -> None:
    assert len(_refusal(b"x" * 10_000_000)) < 200
    assert len(_refusal(_sample(b'"reward":"%s"' % (b"x" * 10_000_000)))) < 200


# --- MessagePack -----------------------------------------------------------------------------------------------------


def _packed(**fields: Any) -> bytes:
    return msgspec.msgpack.encode({"type": "sample", "step": 1, **fields})


def test_MessagePack_and_JSON_give_the_same_event() -> None:
    fields: dict[str, Any] = {"rollout_id": "r", "reward": {"a": 1.5}, "weight_versions": [1, "b"], "values": {"x": 2}}
    as_json = msgspec.json.encode({"type": "sample", "step": 1, **fields})
    assert decode(_packed(**fields)) == decode(as_json)


@pytest.mark.parametrize("fields", [0, 13, 14, 70_000])
def test_MessagePack_is_known_by_itself_however_many_fields_it_has(fields: int) -> None:
    assert decode(_packed(**{f"x{number}": number for number in range(fields)})).step == 1


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1",
        _packed()[:-1],
        _packed() + b"x",
        _packed(step=True),
        _packed(step=1.0),
        _packed(step=2**53),
        _packed(step=-1),
        _packed(rollout_id=b"bytes"),
        _packed(reward=msgspec.msgpack.Ext(5, b"x")),
        msgspec.msgpack.encode({1: 2}),
        b"\x83\xa4type\xa6sample\xa4step\x01\xa6run_id\xa1\xff",  # no UTF-8
        b"\x83\xa4type\xa6sample\xa4step\x01\xa1x" + b"\x91" * 100_000,
        b"\xdf\xff\xff\xff\xff",  # a map of four billion
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_damaged_MessagePack_is_refused_with_a_reason(value: bytes) -> None:
    assert _refusal(value)


def test_unknown_fields_of_MessagePack_may_hold_what_JSON_can_not() -> None:
    assert decode(_packed(unknown=b"bytes", ext=msgspec.msgpack.Ext(5, b"x"))).step == 1


def test_every_cut_of_an_event_is_refused_or_an_event() -> None:
    for value in (
        _sample(b'"rollout_id":"r","reward":1e400,"values":{"a":[1,2]}'),
        _packed(rollout_id="r", reward={"a": 1.0}, values={"a": 1}),
    ):
        assert decode(value)
        for end in range(len(value)):
            assert _refusal(value[:end])


# --- results and schemas ---------------------------------------------------------------------------------------------


def _result(**fields: Any) -> StepMetrics:
    given: dict[str, Any] = {
        "run_id": "r",
        "scope": "rollout",
        "step": 3,
        "attempt": 0,
        "complete": True,
        "reason": "closed",
        "correction": False,
        "late_samples": 0,
        "opened_unix_ms": None,
        "closed_unix_ms": 1,
        "log": LogPlace(topic="t", partition=0, first_offset=0, close_offset=4),
        "metrics": {"rollout/num_training_samples": 4, "rollout/episode_raw_reward": 0.1 + 0.2, "rollout/step": 3},
    }
    return StepMetrics(**{**given, **fields})


def test_a_result_is_read_back_exactly() -> None:
    result = _result()
    read = decode_result(encode(result))
    assert read == result
    assert read.metrics["rollout/episode_raw_reward"] == 0.30000000000000004


def test_a_results_key_is_a_JSON_array_of_run_scope_and_step() -> None:
    assert _result().key() == b'["r","rollout",3]'
    assert json.loads(_result(run_id='a"b\n😀').key()) == ['a"b\n😀', "rollout", 3]


def test_what_is_no_result_is_refused() -> None:
    for value in (b"", b"{}", _sample(), b"[" * 100_000, b"\xff"):
        with pytest.raises(EventError):
            decode_result(value)


def test_encoding_a_lone_surrogate_is_an_error_of_the_contract() -> None:
    with pytest.raises(EventError):
        encode(Sample(step=1, rollout_id="\ud800"))


def test_defaults_are_left_out_of_an_encoded_event() -> None:
    assert encode(Sample(step=1)) == b'{"type":"sample","step":1}'
    assert encode(StepClose(step=1, reason="timeout", seen_offset=0)) == (
        b'{"type":"close","step":1,"reason":"timeout","seen_offset":0}'
    )


def test_the_schemas_name_every_event_and_every_field() -> None:
    schemas = json_schemas()
    json.dumps(schemas)
    names = {one["$ref"].rsplit("/", 1)[1] for one in schemas["oneOf"]}
    assert names == {"Sample", "SampleBatch", "StepClose", "StepMetrics"}
    for kind in (Sample, SampleBatch, StepClose, StepMetrics):
        made = schemas["$defs"][kind.__name__]
        assert made["properties"]["type"] == {"enum": [kind.__struct_config__.tag]}
        assert set(made["properties"]) == {"type", *(one.encode_name for one in msgspec.structs.fields(kind))}
        assert set(made["required"]) >= {"type", "step"}


def test_every_reference_of_the_schemas_leads_somewhere() -> None:
    schemas = json_schemas()

    def references(part: Any) -> list[str]:
        if isinstance(part, dict):
            found = [part["$ref"]] if "$ref" in part else []
            return found + [ref for one in part.values() for ref in references(one)]
        return [ref for one in part for ref in references(one)] if isinstance(part, list) else []

    assert references(schemas)
    assert {ref.rsplit("/", 1)[1] for ref in references(schemas)} <= set(schemas["$defs"])
