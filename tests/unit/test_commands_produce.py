"""`produce` against librdkafka's mock cluster, which keeps records and partitions as a broker does."""

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from stream_metrics.commands import dump, produce
from stream_metrics.config import Settings, SettingsError
from stream_metrics.core.record import LogRecord
from stream_metrics.exit_codes import ExitCode
from stream_metrics.log_lines import read_lines

PARTITIONS = 4  # what the mock cluster gives a topic


@pytest.fixture(scope="module")
def cluster() -> Producer:
    return Producer({"test.mock.num.brokers": 1, "log_level": 0})


@pytest.fixture
def settings(cluster: Producer, request: pytest.FixtureRequest) -> Settings:
    topic = request.node.name.replace("[", "-").rstrip("]")[-200:]
    cluster.list_topics(topic, timeout=10)  # makes it
    (broker,) = cluster.list_topics(timeout=10).brokers.values()
    return Settings(bootstrap_servers=f"{broker.host}:{broker.port}", input_topic=topic)


def send(settings: Settings, folder: Path, *lines: bytes) -> int:
    path = folder / "events.jsonl"
    path.write_bytes(b"\n".join(lines))
    return produce.main(settings, str(path))


def log(settings: Settings, folder: Path) -> list[LogRecord]:
    path = folder / "log.jsonl"
    assert dump.main(settings, str(path), None) == ExitCode.OK
    return [record for _, record in read_lines(path.read_bytes().splitlines(keepends=True))]


def java_partition(key: bytes) -> int:
    """The partition that Kafka's own Java client chooses: murmur2, with its sign cut off."""
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    hashed = 0x9747B28C ^ len(key)
    whole = len(key) - len(key) % 4
    for place in range(0, whole, 4):
        part = int.from_bytes(key[place : place + 4], "little") * multiplier & mask
        hashed = (hashed * multiplier & mask) ^ ((part ^ part >> 24) * multiplier & mask)
    if key[whole:]:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return ((hashed ^ hashed >> 15) & 0x7FFFFFFF) % PARTITIONS


def test_events_are_sent_unchanged_and_keyed_by_their_run(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [b'{"type":"close", "step":%d,"run_id":"run-%d","more":1}' % (step, step) for step in range(12)]
    assert send(settings, tmp_path, *lines, b"", b'{"type":"close","step":0}') == ExitCode.OK
    assert f"13 sent to {settings.input_topic}, 0 no event, 0 not delivered" in capsys.readouterr().err
    records = log(settings, tmp_path)
    assert {record.value(): record.key() for record in records} == {
        **{line: b"run-%d" % step for step, line in enumerate(lines)},
        b'{"type":"close","step":0}': b"default",
    }
    assert len({record.partition() for record in records}) > 1
    for record in records:
        assert record.partition() == java_partition(record.key() or b"")


def test_a_line_that_is_no_event_is_named_and_the_rest_is_sent(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = send(settings, tmp_path, b'{"type":"close","step":0}', b"junk", b'{"type":"close","step":-1}', b"\xff")
    assert code == ExitCode.INPUT_REFUSED
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": no event")[0] for line in said[:3]] == [f"produce: line {number}" for number in (2, 3, 4)]
    assert said[3] == f"produce: 1 sent to {settings.input_topic}, 3 no event, 0 not delivered"
    assert len(log(settings, tmp_path)) == 1


def test_lines_of_a_dump_are_sent_as_they_were(settings: Settings, tmp_path: Path) -> None:
    lines = [
        b'{"value":"junk","key":"a","headers":[["x",null],["x",{"base64":"/w=="}]],"partition":0,"offset":77}',
        b'{"value":null,"key":"a"}',
        b'{"value":"","key":"a"}',
        b'{"value":{"type":"close","step":0},"partition":3}',
    ]
    assert send(settings, tmp_path, *lines) == ExitCode.OK
    records = log(settings, tmp_path)
    assert {(record.partition(), record.key(), record.value()) for record in records} == {
        (java_partition(b"a"), b"a", b"junk"),
        (java_partition(b"a"), b"a", None),
        (java_partition(b"a"), b"a", b""),
        (3, None, b'{"type":"close","step":0}'),
    }
    assert next(record.headers() for record in records if record.value() == b"junk") == [("x", None), ("x", b"\xff")]


def test_standard_input_is_a_file_too(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'{"type":"close","step":0}\r\n')))
    assert produce.main(settings, "-") == ExitCode.OK
    assert [record.value() for record in log(settings, tmp_path)] == [b'{"type":"close","step":0}']


def test_a_full_queue_is_waited_for(settings: Settings, tmp_path: Path) -> None:
    small = Settings(
        bootstrap_servers=settings.bootstrap_servers,
        input_topic=settings.input_topic,
        kafka_config={"queue.buffering.max.messages": "3", "linger.ms": "0"},
    )
    assert send(small, tmp_path, *[b'{"type":"close","step":%d}' % step for step in range(50)]) == ExitCode.OK
    assert len(log(settings, tmp_path)) == 50


def test_a_record_that_is_not_delivered_is_named(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The client refuses the second at once, the third has no such partition.
    code = send(
        Settings(
            bootstrap_servers=settings.bootstrap_servers,
            input_topic=settings.input_topic,
            kafka_config={"message.max.bytes": "1000"},
        ),
        tmp_path,
        b'{"type":"close","step":0}',
        b'{"type":"close","step":1,"more":"%s"}' % (b"x" * 2000),
        b'{"value":null,"partition":99}',
    )
    assert code == ExitCode.KAFKA_REFUSED
    said = capsys.readouterr().err
    assert "produce: line 2: not sent: " in said
    assert "produce: line 3: not " in said
    assert f"1 sent to {settings.input_topic}, 0 no event, 2 not delivered" in said


def test_a_producer_that_can_not_go_on_ends_the_command(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Fenced(Producer):
        def produce(self, *arguments: Any, **named: Any) -> None:
            raise KafkaException(KafkaError(KafkaError._FATAL))

    monkeypatch.setattr("stream_metrics.commands._clients.Producer", Fenced)
    code = send(settings, tmp_path, b'{"type":"close","step":0}', b'{"type":"close","step":1}')
    assert code == ExitCode.KAFKA_REFUSED
    assert "line 1 and all that follow are not sent" in capsys.readouterr().err


def test_an_interrupt_says_that_lines_were_left(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines() -> Iterator[bytes]:
        yield b'{"type":"close","step":0}'
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=lines()))
    assert produce.main(settings, "-") == ExitCode.INTERNAL_ERROR
    assert capsys.readouterr().err.splitlines() == [
        "produce: interrupted: the lines that follow were not sent",
        f"produce: 1 sent to {settings.input_topic}, 0 no event, 0 not delivered",
    ]


def test_a_missing_topic_is_refused_and_not_made(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], cluster: Producer
) -> None:
    missing = Settings(bootstrap_servers=settings.bootstrap_servers, input_topic="missing")
    assert send(missing, tmp_path, b'{"type":"close","step":0}') == ExitCode.KAFKA_REFUSED
    assert "there is no topic 'missing'" in capsys.readouterr().err
    assert "missing" not in cluster.list_topics(timeout=10).topics


def test_a_broker_that_is_not_there_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream_metrics.commands._clients.ANSWER_SECONDS", 1.0)
    assert send(Settings(bootstrap_servers="127.0.0.1:1"), tmp_path, b"") == ExitCode.KAFKA_REFUSED
    assert "Connection refused" in capsys.readouterr().err


def test_a_client_property_that_does_not_exist_is_a_wrong_setting(settings: Settings, tmp_path: Path) -> None:
    wrong = Settings(bootstrap_servers=settings.bootstrap_servers, kafka_config={"no.such.thing": "1"})
    with pytest.raises(SettingsError, match=r"kafka-config: .*no\.such\.thing"):
        send(wrong, tmp_path, b"")


def test_a_file_that_is_not_there_is_wrong_usage(settings: Settings) -> None:
    with pytest.raises(SettingsError, match=r"FILE: 'missing\.jsonl' can't be read: No such file"):
        produce.main(settings, "missing.jsonl")
