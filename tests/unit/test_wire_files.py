"""Events and results once on the wire are read the same for ever. Files are added here, never changed."""

import base64
import json
from pathlib import Path

import msgspec
import pytest

from stream_metrics import events

WIRE = Path(__file__).parents[1] / "wire"
EVENTS = [json.loads(line) for path in sorted(WIRE.glob("events_*.jsonl")) for line in path.read_text().splitlines()]
RESULTS = [line for path in sorted(WIRE.glob("results_*.jsonl")) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("case", EVENTS)
def test_an_event_of_an_earlier_version_is_read_as_it_was(case):
    value = case["json"].encode() if "json" in case else base64.b64decode(case["msgpack"])
    decoded = msgspec.to_builtins(events.decode(value))
    assert {name: decoded[name] for name in case["decoded"]} == case["decoded"]


@pytest.mark.parametrize("line", RESULTS)
def test_a_result_of_an_earlier_version_is_read_as_it_was(line):
    read = msgspec.to_builtins(events.decode_result(line))
    written = json.loads(line)
    assert {name: read[name] for name in written} == written
