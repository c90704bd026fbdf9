import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_metrics import events
from stream_metrics.core.record import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP, LogRecord, Record
from stream_metrics.log_lines import read_dumped, read_line, read_lines, write_line

EVENT = b'{"type":"sample","step":3,"reward":1.0}'


def parts(record: Record) -> tuple[object, ...]:
    return (
        record.topic(),
        record.partition(),
        record.offset(),
        record.timestamp(),
        record.key(),
        record.headers(),
        record.value(),
    )


CONTENTS = st.one_of(st.none(), st.binary(max_size=40), st.text(max_size=40).map(str.encode))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
).map(lambda value: json.dumps(value).encode())
RECORDS = st.builds(
    LogRecord,
    value=CONTENTS | JSON_VALUES,
    key=CONTENTS,
    headers=st.none() | st.lists(st.tuples(st.text(), CONTENTS), max_size=3),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    timestamp=st.just((NO_TIMESTAMP, 0)) | st.tuples(st.sampled_from([CREATE_TIME, LOG_APPEND_TIME]), st.integers(0)),
    topic=st.text(max_size=20),
)


@given(RECORDS.filter(lambda record: record.timestamp()[1] < 2**63))
def test_a_written_record_is_read_back_byte_for_byte(record: LogRecord) -> None:
    line = write_line(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert b"\r" not in line
    assert parts(read_line(line, 99)) == parts(record)
    json.loads(line)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"null",
        b"{}",
        b"{},{}",
        b"{}],[{}",
        b'{"a":1},"b":{}',
        b'{"a":1}\n',
        b' {"a":1}',
        b'{"a"  :  1.00}',
        b'{\n"a":1}',
        b'{"a":NaN}',
        b'{"a":1e400}',
        b'{"a":"\\ud800"}',
        b'{"a":1,"a":2}',
        b'{"a":"\xff"}',
        b'{"base64":"AAAA"}',
        b'{"base64":7}',
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b'"text"',
        b"[]",
        b"17",
        b"\x00\xff",
        "\u2028 é 🦀".encode(),
        b"\xef\xbb\xbf{}",
    ],
)
def test_values_that_look_like_something_else_survive(value: bytes | None) -> None:
    assert read_line(write_line(LogRecord(value=value)), 1).value() == value


def test_an_event_stands_readable_in_its_line() -> None:
    record = LogRecord(
        value=EVENT, key=b"run", headers=[("a", b"b"), ("n", None)], offset=7, timestamp=(1, 5), topic="t"
    )
    assert write_line(record) == (
        b'{"topic":"t","partition":0,"offset":7,"timestamp":5,"key":"run","headers":[["a","b"],["n",null]],'
        b'"value":{"type":"sample","step":3,"reward":1.0}}\n'
    )


def test_bytes_that_are_no_text_are_base64() -> None:
    line = write_line(LogRecord(value=b"\xff", key=b"\xfe", offset=1, timestamp=(2, 5), topic="t"))
    assert line == (
        b'{"topic":"t","partition":0,"offset":1,"timestamp":5,"timestamp_type":"log_append",'
        b'"key":{"base64":"/g=="},"value":{"base64":"/w=="}}\n'
    )


def test_a_bare_event_gets_its_place_among_the_lines_as_offset() -> None:
    record = read_line(EVENT + b"\r\n", 12)
    assert parts(record) == ("", 0, 11, (0, 0), None, None, EVENT)


def test_an_event_with_fields_named_as_a_line_s_is_still_a_bare_event() -> None:
    line = b'{"type":"sample","step":0,"value":{"x":1},"offset":5,"key":"k"}'
    assert read_dumped(line, 1) is None
    assert parts(read_line(line, 1)) == ("", 0, 0, (0, 0), None, None, line)


def test_a_bare_event_with_nan_keeps_its_bytes() -> None:
    line = b'{"type":"sample","step":0,"reward":NaN}'
    value = read_line(line, 1).value()
    assert value == line
    assert isinstance(events.decode(line), events.Sample)


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"7",
        b'{"step":3}',
        b'{"value":{"type":"close","step":0}',
        b'{"value":null,"offset":"x"}',
        b'{"value":null,"offset":-1}',
        b'{"value":null,"key":5}',
        b'{"value":null,"key":{"base64":"???"}}',
        b'{"value":"\\ud800"}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_can_not_be_read_becomes_a_record_that_no_decoder_takes(line: bytes) -> None:
    record = read_line(line + b"\n", 4)
    assert parts(record) == ("", 0, 3, (0, 0), None, None, line)
    with pytest.raises(events.EventError):
        events.decode(line)


def test_a_line_by_hand_needs_only_a_value() -> None:
    assert parts(read_line(b'{"value": {"type": "close", "step": 1} }', 3)) == (
        "",
        0,
        2,
        (0, 0),
        None,
        None,
        b'{"type": "close", "step": 1}',
    )
    assert read_line(b'{"value": null}', 1).value() is None


def test_blank_lines_count_and_yield_nothing() -> None:
    assert [(number, record.offset()) for number, record in read_lines([b"{}\n", b"\n", b" \r\n", b"{}"])] == [
        (1, 0),
        (4, 3),
    ]
