"""What the compiled part reads, what it leaves to the decoder, and where it stops."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from stream_metrics.core import compiled
from stream_metrics.core.rows import FULL, HAS_MIXED_VERSIONS, MARKS, PLAIN, POSITION, REWARD, VERSION
from stream_metrics.events import DEFAULT_SCOPE, Sample, SampleBatch, SampleFields
from support.compiled import decoded, needs_compiled, read

pytestmark = needs_compiled

ONE = {"type": "sample", "run_id": "r", "step": 3, "group_index": 1, "rollout_id": 8, "reward": 0.25}
SAMPLE = {"group_index": 1, "rollout_id": 8, "reward": 0.25}

READ = [
    ONE,
    {**ONE, "attempt": 2, "scope": "eval/x"},
    {**ONE, "attempt": None, "scope": None, "run_id": None},
    {**ONE, "run_id": ""},
    {**ONE, "run_id": "数学"},
    {**ONE, "step": 2**53 - 1},
    {**ONE, "group_index": -(10**17), "rollout_id": 10**18 - 1, "index": 4},
    *({**ONE, "reward": reward} for reward in (0, -3, 1e-300, -0.0, 1.7976931348623157e308, 5e-324, True, False, None)),
    *({**ONE, "reward": reward} for reward in (0.1, 1 / 3, 2 / 3, 123456789.12345678, 2.5e-8, 9007199254740993)),
    *({**ONE, "status": status} for status in ("completed", "truncated", "aborted", "failed", "tool_error", "", None)),
    {**ONE, "response_length": 77},
    {**ONE, "response_length": 77, "effective_response_length": 70},
    {**ONE, "effective_response_length": 0, "response_length": 77},
    {**ONE, "response_length": 77, "effective_response_length": None},
    *({**ONE, "sample_id": one} for one in ("rank-0#12", "ü", "", 7, -7, None)),
    *({**ONE, "position": one} for one in (0, 5, -5, None)),
    *({**ONE, "weight_versions": one} for one in ([3], ["3"], ["007"], [3, 3], [4, 3], ["4", 3, "3"], [0], ["0"], [])),
    *({**ONE, "weight_versions": one} for one in (["a"], ["a", "b"], ["9007199254740991"], ["3", "a"], None)),
    *({**ONE, "metadata": {"raw_reward": one}} for one in (0, 1.5, None, True)),
    {**ONE, "metadata": {}},
    {**ONE, "metadata": None},
    {**ONE, "metadata": {"other": [1, {"a": None}], "raw_reward": 2, "more": "text"}},
    {**ONE, "data_source": None, "values": None},
    {**ONE, "prompt": "unread", "nested": {"a": [1.5, True, None, {"b": []}]}},
    {**ONE, "sample_id": 1, "position": 2, "weight_versions": [3], "metadata": {"raw_reward": 4}, "status": "failed"},
    {"type": "samples", "step": 1, "samples": [SAMPLE]},
    {"samples": [SAMPLE, {**SAMPLE, "sample_id": "x"}, {**SAMPLE, "position": 1}], "step": 1, "type": "samples"},
    {"type": "samples", "step": 1, "run_id": "q", "other": 1, "samples": [{**SAMPLE, "type": "x", "samples": 1}] * 3},
]  # fmt: skip

LEFT = [
    b"",
    b"poison",
    b'"sample"',
    b"[]",
    b"{}",
    b"{",
    b'{"type":"close","step":3}',
    b'{"type":"sample","step":3}',  # no rollout: its place would be its identity
    b'{"type":"samples","step":3,"samples":[]}',  # nothing by which its window would be told of it
    b'{"type":"samples","step":3,"samples":null}',
    b'{"type":"samples","step":3,"samples":[{"group_index":1,"rollout_id":2},{"group_index":1}]}',
    b'{"type":"samples","step":3,"reward":1,"samples":[{"group_index":1,"rollout_id":2}]}',
    b'{"type":"sample","step":3,"group_index":1,"rollout_id":2,"samples":[]}',
]

FIELDS_LEFT = [
    '"step":-1',
    '"step":9007199254740992',
    '"step":1.0',
    '"step":"1"',
    '"step":null',
    '"step":true',
    '"attempt":-1',
    '"attempt":9007199254740992',
    '"run_id":"' + "x" * 513 + '"',
    '"run_id":7',
    '"run_id":"a\\u0062"',
    '"scope":"\\n"',
    '"group_index":"a"',
    '"group_index":null',
    '"rollout_id":"8"',
    '"rollout_id":null',
    '"rollout_id":1000000000000000000',
    '"rollout_id":-0',
    '"rollout_id":08',
    '"rollout_id":1e3',
    '"index":"a"',
    '"index":1.5',
    '"position":"a"',
    '"position":9223372036854775807',
    '"sample_id":1.5',
    '"sample_id":true',
    '"sample_id":[1]',
    '"reward":"1"',
    '"reward":NaN',
    '"reward":-Infinity',
    '"reward":1e999',
    '"reward":-0',
    '"reward":{"a":1}',
    '"reward":[1]',
    '"reward":.5',
    '"reward":1.',
    '"reward":+1',
    '"reward":1e',
    '"reward":tru',
    '"reward":99999999999999999999',
    '"response_length":1.0',
    '"effective_response_length":"7"',
    '"status":1',
    '"status":"a\tb"',
    '"data_source":"gsm8k"',
    '"data_source":1',
    '"values":{"turns":3}',
    '"metadata":{"raw_reward":"1"}',
    '"metadata":{"raw_reward":{}}',
    '"metadata":{"raw_reward":1,"raw_reward":2}',
    '"metadata":{"other":1e999}',
    '"metadata":{"a":}',
    '"metadata":[]',
    '"weight_versions":[-1]',
    '"weight_versions":[9007199254740992]',
    '"weight_versions":["99999999999999999999"]',
    '"weight_versions":[null]',
    '"weight_versions":[1.5]',
    '"weight_versions":[1,]',
    '"weight_versions":1',
    '"extra":' + "[" * 20 + "]" * 20,
    '"extra":"\\u0000"',
    '"extra":nul',
]


def others_than(name: str) -> str:
    """Returns the fields of a sample, but one."""
    return "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in ONE.items() if key != name)


@pytest.mark.parametrize("event", READ, ids=str)
def test_it_reads_what_the_decoder_reads(event):
    written = (
        msgspec.json.encode(event),
        json.dumps(event, ensure_ascii=False).encode(),
        json.dumps(event, ensure_ascii=False, indent=1).encode() + b" \n",
        json.dumps(dict(reversed(event.items())), ensure_ascii=False).encode(),
        msgspec.msgpack.encode(event),
    )
    for value in written:
        got = read(value)
        assert got is not None, value
        assert got == decoded(value)
        assert list(map(type, got.ids)) == list(map(type, decoded(value).ids))


@pytest.mark.parametrize("value", LEFT, ids=repr)
def test_it_leaves_other_events_to_the_decoder(value):
    assert read(value) is None


@pytest.mark.parametrize("field", FIELDS_LEFT, ids=lambda field: field[:60])
def test_it_leaves_values_that_take_a_closer_look_to_the_decoder(field):
    name = json.loads("{" + field.split(":")[0] + ":0}").popitem()[0]
    value = ("{" + field + others_than(name) + "}").encode()
    assert read(value) is None


@pytest.mark.parametrize("name", Sample.__struct_fields__)
def test_no_field_of_a_sample_is_taken_for_one_that_nobody_reads(name):
    assert read(msgspec.json.encode({**ONE, "unread": [[]]})) is not None
    assert read(msgspec.json.encode({**ONE, name: [[]]})) is None


@pytest.mark.parametrize("name", sorted({*SampleBatch.__struct_fields__, *SampleFields.__struct_fields__}))
def test_no_field_of_several_samples_is_taken_for_one_that_nobody_reads(name):
    event = {"type": "samples", "step": 1, "samples": [SAMPLE]}
    assert read(msgspec.json.encode(event)) is not None
    odd = (
        {**event, name: [[]]}
        if name in SampleBatch.__struct_fields__
        else {**event, "samples": [{**SAMPLE, name: [[]]}]}
    )
    assert read(msgspec.json.encode(odd)) is None


@pytest.mark.parametrize("name", [*ONE, "samples", "attempt"])
def test_a_name_given_twice_is_the_decoders(name):
    event = {**ONE, "attempt": 0}
    if name == "samples":
        value = b'{"type":"samples","step":1,"samples":[%b],"samples":[%b]}' % ((msgspec.json.encode(SAMPLE),) * 2)
    else:
        value = msgspec.json.encode(event)[:-1] + b"," + msgspec.json.encode({name: event[name]})[1:]
    assert read(value) is None


def test_every_cut_of_a_value_and_every_byte_changed_is_read_as_the_decoder_reads_it():
    event = {**ONE, "sample_id": "x", "weight_versions": ["1"], "metadata": {"raw_reward": 1.5}, "extra": [1, {"a": 2}]}
    num_read = 0
    for value in (msgspec.json.encode(event), msgspec.msgpack.encode(event)):
        for end in range(len(value)):
            assert read(value[:end]) is None
        for place in range(len(value)):
            for byte in (0, 9, 32, 34, 44, 48, 58, 92, 93, 123, 125, 127, 128, 0x90, 0xC0, 0xC3, 0xCB, 0xDF, 255):
                changed = value[:place] + bytes([byte]) + value[place + 1 :]
                got = read(changed)
                if got is not None:
                    num_read += 1
                    assert got == decoded(changed), changed
    assert num_read > 500


def values(*steps: int) -> list[bytes | None]:
    return [msgspec.json.encode({**ONE, "step": step}) for step in steps]


def lanes_of(*steps: int):
    """Knows these steps, and notes what it is asked for."""
    asked = []

    def find(run_id: str | None, scope: str | None, attempt: int, step: int) -> int | None:
        asked.append((run_id, scope, attempt, step))
        return steps.index(step) if step in steps else None

    return find, asked


def test_a_stretch_ends_before_what_it_does_not_read_and_before_a_window_without_lane():
    reader = compiled.Reader()
    find, asked = lanes_of(4, 5)
    for end in (values(6)[0], b'{"type":"close","step":4}', None, b"poison"):
        stretch = reader.read([*values(9, 4, 5, 5, 4, 5), end, *values(4)], 1, find)
        assert stretch.num_values == 5
        assert stretch.lanes.tolist() == [0, 1, 1, 0, 1]
        assert sorted(stretch.last) == [(0, 4), (1, 5)]
        assert stretch.rows.shape == (5, PLAIN)
        assert stretch.ids is None
    assert asked == [("r", None, 0, 4), ("r", None, 0, 5), ("r", None, 0, 6)]


def test_a_long_stretch_is_read_whole():
    find, _ = lanes_of(*range(300))
    steps = [number * 7 % 300 for number in range(1_000)]
    stretch = compiled.Reader().read(values(*steps), 0, find)
    assert (stretch.num_values, stretch.lanes.tolist()) == (1_000, steps)
    assert dict(stretch.last) == {step: place for place, step in enumerate(steps)}


def test_it_asks_for_a_name_once_until_it_has_to_forget():
    reader = compiled.Reader()
    find, asked = lanes_of(4)
    reader.read(values(4, 4), 0, find)
    reader.read(values(4), 0, find)
    assert len(asked) == 1
    reader.forget()
    other, asked = lanes_of(3, 4)
    assert reader.read(values(4), 0, other).lanes.tolist() == [1]
    assert len(asked) == 1


def test_names_that_could_be_taken_for_one_another_are_apart():
    names = [
        (run, scope, attempt, step)
        for run in (None, "", "a", "ab", "a\x7f")
        for scope in (None, "", "b", DEFAULT_SCOPE)
        for attempt in (0, 1, 256)
        for step in (0, 1, 256)
    ]
    asked = []

    def find(*name) -> int:
        asked.append(name)
        return len(asked) - 1

    reader = compiled.Reader()
    written = [
        msgspec.json.encode({**ONE, "run_id": run, "scope": scope, "attempt": attempt, "step": step})
        for run, scope, attempt, step in names
    ]
    assert reader.read([*written, *written], 0, find).lanes.tolist() == [*range(len(names))] * 2
    assert asked == names


def test_events_of_several_samples_count_as_such_and_some_ids_are_enough():
    two = msgspec.json.encode({"type": "samples", "step": 4, "samples": [SAMPLE, {**SAMPLE, "sample_id": "b"}]})
    find, _ = lanes_of(4)
    stretch = compiled.Reader().read([*values(4), two, two, *values(4)], 0, find)
    assert (stretch.num_values, stretch.num_batches, stretch.lanes.tolist()) == (4, 2, [0] * 6)
    assert stretch.ids == [None, None, "b", None, "b", None]
    assert stretch.last == [(0, 3)]


def test_one_sample_that_is_not_plain_makes_the_rows_full():
    find, _ = lanes_of(4)
    versioned = msgspec.json.encode({**ONE, "step": 4, "position": 6, "weight_versions": [2, "1"]})
    stretch = compiled.Reader().read([*values(4), versioned], 0, find)
    assert stretch.rows.shape == (2, FULL)
    assert stretch.rows[:, POSITION].tolist() == [2**63 - 1, 6]
    assert stretch.rows[:, VERSION].tolist() == [-(2**63), 1]
    assert stretch.rows[1, MARKS] & HAS_MIXED_VERSIONS
    assert stretch.rows[:, REWARD].copy().view(np.float64).tolist() == [0.25, 0.25]


def test_what_goes_wrong_in_looking_for_a_window_is_raised():
    def find(*_) -> int:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        compiled.Reader().read(values(4), 0, find)


def test_without_it_all_is_read_in_python():
    script = """if True:
        import sys
        sys.modules["stream_metrics.core._native"] = None
        from stream_metrics.core import compiled
        from stream_metrics.testing import MemoryLog, close, sample
        assert not compiled.IS_THERE
        log = MemoryLog()
        for event in (sample(0, 1.0), sample(0, 0.0), close(0)):
            log.append(event)
        print(log.fold().results[0].metrics["rollout/num_training_samples"])
    """
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "2\n"
