"""`dump` against librdkafka's mock cluster. What needs transactions is among the tests with a real broker."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from stream_metrics.commands import dump
from stream_metrics.config import Settings, SettingsError
from stream_metrics.exit_codes import ExitCode
from stream_metrics.log_lines import read_lines


@pytest.fixture(scope="module")
def cluster() -> Producer:
    return Producer({"test.mock.num.brokers": 1, "log_level": 0})


@pytest.fixture
def settings(cluster: Producer, request: pytest.FixtureRequest) -> Settings:
    topic = str(request.node.name)
    cluster.list_topics(topic, timeout=10)  # makes it
    (broker,) = cluster.list_topics(timeout=10).brokers.values()
    return Settings(bootstrap_servers=f"{broker.host}:{broker.port}", input_topic=topic)


@pytest.fixture
def written(cluster: Producer, settings: Settings) -> Settings:
    for partition in (2, 0, 3):
        for number in range(3):
            cluster.produce(settings.input_topic, b"%d-%d" % (partition, number), partition=partition, timestamp=1000)
            cluster.flush(10)
    return settings


def places(path: Path) -> list[tuple[int, int, bytes | None]]:
    records = [record for _, record in read_lines(path.read_bytes().splitlines(keepends=True))]
    return [(record.partition(), record.offset(), record.value()) for record in records]


def test_partitions_come_one_after_another_in_the_order_of_offsets(
    written: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    assert dump.main(written, str(path), None) == ExitCode.OK
    assert places(path) == [(partition, n, b"%d-%d" % (partition, n)) for partition in (0, 2, 3) for n in range(3)]
    assert capsys.readouterr().err == f"dump: 9 records of 4 partitions of {written.input_topic}\n"
    assert os.listdir(tmp_path) == ["log.jsonl"]


def test_everything_of_a_record_is_written(
    cluster: Producer, settings: Settings, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    cluster.produce(
        settings.input_topic, None, b"\xff", partition=1, timestamp=1234, headers=[("a", b"1"), ("a", None)]
    )
    cluster.flush(10)
    assert dump.main(settings, "-", None) == ExitCode.OK
    assert capfdbinary.readouterr().out == (
        b'{"topic":"%s","partition":1,"offset":0,"timestamp":1234,"key":{"base64":"/w=="},'
        b'"headers":[["a","1"],["a",null]],"value":null}\n' % settings.input_topic.encode()
    )


def test_one_partition_may_be_chosen(written: Settings, tmp_path: Path) -> None:
    assert dump.main(written, str(tmp_path / "log"), 2) == ExitCode.OK
    assert [partition for partition, _, _ in places(tmp_path / "log")] == [2, 2, 2]


def test_a_partition_that_is_not_there_is_a_wrong_setting(written: Settings, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--partition: 4 must be a partition of .*: 0 to 3"):
        dump.main(written, str(tmp_path / "log"), 4)
    assert os.listdir(tmp_path) == []


def test_an_empty_topic_gives_an_empty_file(settings: Settings, tmp_path: Path) -> None:
    assert dump.main(settings, str(tmp_path / "log"), None) == ExitCode.OK
    assert places(tmp_path / "log") == []


def test_what_is_written_after_the_start_is_left_out(
    cluster: Producer, written: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = dump._spans

    def spans_then_more(*arguments: Any) -> dict[int, tuple[int, int]]:
        found = spans(*arguments)
        cluster.produce(written.input_topic, b"later", partition=0)
        cluster.flush(10)
        return found

    monkeypatch.setattr(dump, "_spans", spans_then_more)
    assert dump.main(written, str(tmp_path / "log"), 0) == ExitCode.OK
    assert places(tmp_path / "log") == [(0, number, b"0-%d" % number) for number in range(3)]


def test_an_interrupted_dump_leaves_no_file_of_its_name(
    written: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(Consumer):
        def consume(self, *arguments: Any, **named: Any) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr("stream_metrics.commands._clients.Consumer", Interrupted)
    assert dump.main(written, str(tmp_path / "log"), None) == ExitCode.INTERNAL_ERROR
    assert os.listdir(tmp_path) == ["log.partial"]
    assert capsys.readouterr().err == "dump: interrupted; the output is not whole\n"


def test_a_pipe_is_written_to_and_not_replaced(written: Settings, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.extend(path.read_bytes().splitlines()))
    reader.start()
    assert dump.main(written, str(path), None) == ExitCode.OK
    reader.join(10)
    assert len(read) == 9
    assert path.is_fifo()


def test_a_missing_topic_is_refused(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    missing = Settings(bootstrap_servers=settings.bootstrap_servers, input_topic="missing")
    assert dump.main(missing, None, None) == ExitCode.KAFKA_REFUSED
    assert "there is no topic 'missing'" in capsys.readouterr().err


def test_a_file_that_can_not_be_written_is_a_wrong_setting(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--output: .* can't be written: No such file"):
        dump.main(settings, str(tmp_path / "missing" / "log"), None)


def test_a_full_disk_is_said(written: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("the system has no /dev/full")
    assert dump.main(written, "/dev/full", None) == ExitCode.INTERNAL_ERROR
    assert "No space left on device; the output is not whole" in capsys.readouterr().err
