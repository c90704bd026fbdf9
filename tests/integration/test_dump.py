"""`dump` and transactions: where does a read_committed log end?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from stream_metrics.commands import dump, produce
from stream_metrics.config import Settings
from stream_metrics.exit_codes import ExitCode
from stream_metrics.log_lines import read_lines
from support.brokers import Broker
from support.topics import NewRecord, Record, create_topic, produce_transaction, read_topic, unique_name
from support.topics import produce as write


def values(text: bytes) -> list[bytes | None]:
    return [record.value() for _, record in read_lines(text.splitlines(keepends=True))]


def dumped(broker: Broker, topic: str, folder: Path) -> list[bytes | None]:
    path = folder / "log.jsonl"
    assert dump.main(Settings(bootstrap_servers=broker.bootstrap, input_topic=topic), str(path), None) == ExitCode.OK
    return values(path.read_bytes())


def test_an_open_transaction_below_the_end_is_waited_for(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap)
    opened = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": unique_name("txn"), "log_level": 0})
    opened.init_transactions(30)
    opened.begin_transaction()
    opened.produce(topic, b"open when the dump starts", partition=0)
    opened.flush(30)
    produce_transaction(broker.bootstrap, topic, [b"committed after it"], commit=True)
    command = [sys.executable, "-m", "stream_metrics", "dump", "--input-topic", topic]
    with subprocess.Popen(
        [*command, "--bootstrap-servers", broker.bootstrap], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        waiting = process.stderr.readline()
        produce_transaction(broker.bootstrap, topic, [b"after the end"], commit=True)
        opened.commit_transaction(30)
        output, _ = process.communicate(timeout=60)
    assert waiting == b"dump: partition 0: waiting for an open transaction at offset 0 to end\n"
    assert process.returncode == ExitCode.OK
    assert values(output) == [b"open when the dump starts", b"committed after it"]


def test_aborted_records_are_left_out_and_an_aborted_end_is_an_end(broker: Broker, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap)
    write(broker.bootstrap, topic, [b"plain"])
    produce_transaction(broker.bootstrap, topic, [b"aborted"], commit=False)
    produce_transaction(broker.bootstrap, topic, [b"committed"], commit=True)
    produce_transaction(broker.bootstrap, topic, [b"aborted too"], commit=False)
    assert dumped(broker, topic, tmp_path) == [b"plain", b"committed"]


def test_a_log_that_was_emptied_or_cut_ends_where_it_ends(broker: Broker, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap)
    write(broker.bootstrap, topic, [b"0", b"1", b"2"])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for until, left in ((2, [b"2"]), (3, [])):
        for deleted in admin.delete_records([TopicPartition(topic, 0, until)]).values():
            deleted.result(30)
        assert dumped(broker, topic, tmp_path) == left


def test_a_dump_that_is_produced_again_is_the_same_log(broker: Broker, tmp_path: Path) -> None:
    records = [
        NewRecord(b'{"type":"sample","step":0,"reward":NaN}', key=b"run"),
        NewRecord(b'{"type":"close", "step":0}', key=b"run", headers=[("a", b"\xff"), ("a", None), ("b", b"")]),
        NewRecord(None, key=b"other"),
        NewRecord(b"\xff\x00", key=b"\xff"),
        NewRecord(b"", partition=2),
    ]
    first, second = (create_topic(broker.bootstrap, partitions=3) for _ in range(2))
    write(broker.bootstrap, first, records)
    path = str(tmp_path / "log.jsonl")
    assert dump.main(Settings(bootstrap_servers=broker.bootstrap, input_topic=first), path, None) == ExitCode.OK
    assert produce.main(Settings(bootstrap_servers=broker.bootstrap, input_topic=second), path) == ExitCode.OK

    def contents(topic: str) -> list[tuple[bytes | None, bytes | None, object]]:
        found: list[Record] = read_topic(broker.bootstrap, topic)
        return sorted(((record.key, record.value, record.headers) for record in found), key=repr)

    assert contents(second) == contents(first)
    assert len(contents(second)) == 5
