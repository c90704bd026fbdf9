"""`stream-metrics dump`: the input topic to JSON lines that `replay` reads back.

The end is asked for read_uncommitted, once, and each partition is then read read_committed up to it: an open
transaction below the end is waited for, and what is written later is left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from stream_metrics.commands._clients import (
    ANSWER_SECONDS,
    Complaints,
    KafkaRefusedError,
    explain,
    make_consumer,
    partitions_of,
)
from stream_metrics.config import Problem, Settings, SettingsError
from stream_metrics.core.record import Record
from stream_metrics.exit_codes import ExitCode
from stream_metrics.log_lines import write_line

_OWN_CONFIG: Final[dict[str, Any]] = {
    "group.id": "stream-metrics-dump",  # asked for by the client; nobody joins or commits
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 50,  # that a partition has ended is known only after an empty fetch
}
_BATCH: Final = 1000
_POLL_SECONDS: Final = 0.1  # a batch that isn't full takes as long
_IDLE_POLLS: Final = 100
"""Polls without anything after which the broker is asked whether it's still there."""


def main(settings: Settings, output: str | None, partition: int | None) -> int:
    """Writes the topic to a file, or to standard output for None or `-`; the summary goes to standard error.

    Args:
        settings: Brokers, topic and client properties.
        output: The file. It appears under its name only when it's whole.
        partition: The only partition to write; None for all.
    """
    complaints = Complaints()
    written = 0
    try:
        spans = _spans(settings, partition, complaints)
        with _output(output) as file:
            written = _dump(settings, spans, file, complaints)
    except BrokenPipeError:
        raise
    except OSError as error:
        _say(f"{error.strerror}; the output is not whole")
        return ExitCode.INTERNAL_ERROR
    except KafkaException as error:
        _say(f"{complaints.told(error.args[0])}; the output is not whole")
        return ExitCode.KAFKA_REFUSED
    except KafkaRefusedError as error:
        _say(f"{error}; the output is not whole")
        return ExitCode.KAFKA_REFUSED
    except KeyboardInterrupt:
        _say("interrupted; the output is not whole")
        return ExitCode.INTERNAL_ERROR
    _say(f"{written} records of {len(spans)} partitions of {settings.input_topic}")
    return ExitCode.OK


def _dump(settings: Settings, spans: dict[int, tuple[int, int]], file: BinaryIO, complaints: Complaints) -> int:
    consumer = make_consumer(settings, {**_OWN_CONFIG, "isolation.level": "read_committed"}, complaints)
    try:
        return sum(
            _dump_partition(consumer, settings.input_topic, partition, span, file.write, complaints)
            for partition, span in spans.items()
        )
    finally:
        consumer.close()


def _spans(settings: Settings, only: int | None, complaints: Complaints) -> dict[int, tuple[int, int]]:
    """Returns the first offset and the end of each partition as they stand now."""
    consumer = make_consumer(settings, {**_OWN_CONFIG, "isolation.level": "read_uncommitted"}, complaints)
    try:
        partitions = partitions_of(consumer, settings.input_topic, complaints)
        if only is not None and only not in partitions:
            allowed = f"a partition of {settings.input_topic}: {partitions[0]} to {partitions[-1]}"
            raise SettingsError([Problem("--partition", f"{only} must be {allowed}")])
        return {
            partition: _span(consumer, settings.input_topic, partition, complaints)
            for partition in (partitions if only is None else [only])
        }
    finally:
        consumer.close()


def _span(consumer: Consumer, topic: str, partition: int, complaints: Complaints) -> tuple[int, int]:
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_SECONDS)
    except KafkaException as error:
        raise KafkaRefusedError(f"partition {partition}: no answer: {complaints.told(error.args[0])}") from None
    return low, high


def _dump_partition(
    consumer: Consumer,
    topic: str,
    partition: int,
    span: tuple[int, int],
    write: Callable[[bytes], object],
    complaints: Complaints,
) -> int:
    """Returns the number of records written, once all below the end of the span are."""
    start, end = span
    if start >= end:  # an empty log may never say that it has ended
        return 0
    consumer.assign([TopicPartition(topic, partition, start)])
    written = idle_polls = 0
    while True:
        messages = consumer.consume(_BATCH, timeout=_POLL_SECONDS)
        idle_polls = 0 if messages else idle_polls + 1
        for message in messages:
            error = message.error()
            record = cast("Record", message)
            if error is None:
                if record.offset() < end:
                    write(write_line(record))
                    written += 1
                if record.offset() >= end - 1:
                    return written
            elif error.code() != KafkaError._PARTITION_EOF:
                _give_up_unless_passing(error, partition, complaints)
            elif record.offset() >= end:
                return written
            else:
                _say(f"partition {partition}: waiting for an open transaction at offset {record.offset()} to end")
        # Records after the last committed one may all be aborted or markers: the client passes them without a word.
        if idle_polls and consumer.position([TopicPartition(topic, partition)])[0].offset >= end:
            return written
        if idle_polls and idle_polls % _IDLE_POLLS == 0:
            _span(consumer, topic, partition, complaints)


def _give_up_unless_passing(error: KafkaError, partition: int, complaints: Complaints) -> None:
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise KafkaRefusedError(f"partition {partition}: records were deleted while they were to be read; start again")
    if not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
        raise KafkaRefusedError(f"partition {partition}: {complaints.told(error)}")
    _say(f"partition {partition}: {explain(error)}; trying on")


@contextmanager
def _output(path: str | None) -> Iterator[BinaryIO]:
    if path is None or path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif os.path.exists(path) and not os.path.isfile(path):  # a pipe or a device can't be replaced
        with _opened(path) as file:
            yield file
    else:
        with _opened(f"{path}.partial") as file:
            yield file
        os.replace(f"{path}.partial", path)


def _opened(path: str) -> BinaryIO:
    try:
        return open(path, "wb")
    except OSError as error:
        raise SettingsError([Problem("--output", f"{path!r} can't be written: {error.strerror}")]) from None


def _say(text: str) -> None:
    print(f"dump: {text}", file=sys.stderr)
