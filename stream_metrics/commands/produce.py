"""`stream-metrics produce`: JSON lines of a file to the input topic.

Every line ends up sent or named on standard error with its number; nothing is dropped in silence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, BinaryIO, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from stream_metrics import events
from stream_metrics.commands._clients import (
    Complaints,
    KafkaRefusedError,
    explain,
    make_producer,
    partitions_of,
)
from stream_metrics.config import Problem, Settings, SettingsError
from stream_metrics.exit_codes import ExitCode
from stream_metrics.log_lines import read_dumped

_OWN_CONFIG: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # Java's, so that all producers put a run on the same partition
}
_DEFAULT_CONFIG: Final = {"compression.type": "lz4", "linger.ms": "20"}
_POLL_EVERY: Final = 1000


class _Sender:
    """Sends lines, and counts and names what became of them."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.sent = 0
        self.refused = 0
        self.failed = 0

    def send_all(self, lines: Iterable[bytes]) -> None:
        """Sends each line that is an event; raises KafkaRefusedError where the producer can't go on."""
        for number, line in enumerate(lines, 1):
            if number % _POLL_EVERY == 0:
                self._producer.poll(0)
            if line.strip():
                self._send(number, line)

    def finish(self) -> None:
        """Returns when everything sent was delivered or has failed; the client gives up after message.timeout.ms."""
        while self._producer.flush(1.0):
            pass

    def summary(self) -> str:
        """Returns the counts of lines by what became of them."""
        parts = [f"{self.sent} sent to {self._topic}", f"{self.refused} no event", f"{self.failed} not delivered"]
        if in_doubt := len(self._producer):
            parts.append(f"{in_doubt} perhaps delivered")
        return ", ".join(parts)

    def _send(self, number: int, line: bytes) -> None:
        record = read_dumped(line, number)
        if record is not None:
            arguments: dict[str, Any] = {"value": record.value(), "key": record.key(), "headers": record.headers()}
            if record.key() is None:
                arguments["partition"] = record.partition()
        else:
            value = line.rstrip(b"\r\n")
            try:
                run_id = events.decode(value).run_id
            except events.EventError as error:
                self.refused += 1
                _say(f"line {number}: no event: {error}")
                return
            arguments = {"value": value, "key": (events.DEFAULT_RUN_ID if run_id is None else run_id).encode()}
        self._queue(number, arguments)

    def _queue(self, number: int, arguments: dict[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(self._topic, on_delivery=partial(self._delivered, number), **arguments)
                return
            except BufferError:  # the queue is full until something is delivered
                self._producer.poll(0.1)
            except KafkaException as error:
                self._fail(number, error.args[0])
                return

    def _delivered(self, number: int, error: KafkaError | None, _message: Message) -> None:
        # Called by the client, which loses records where this raises.
        if error is None:
            self.sent += 1
        else:
            self.failed += 1
            _say(f"line {number}: not delivered: {explain(error)}")

    def _fail(self, number: int, error: KafkaError) -> None:
        self.failed += 1
        if error.fatal() or error.code() == KafkaError._FATAL:
            raise KafkaRefusedError(f"line {number} and all that follow are not sent: {explain(error)}")
        _say(f"line {number}: not sent: {explain(error)}")


def main(settings: Settings, path: str) -> int:
    """Sends the lines of a file, or of standard input for `-`, and says on standard error what became of them."""
    complaints = Complaints()
    sender = None
    try:
        with _input(path) as lines:
            own = {name: value for name, value in _DEFAULT_CONFIG.items() if name not in settings.kafka_config}
            producer = make_producer(settings, {**own, **_OWN_CONFIG}, complaints)
            partitions_of(producer, settings.input_topic, complaints)
            sender = _Sender(producer, settings.input_topic)
            try:
                sender.send_all(lines)
            finally:
                sender.finish()
    except KafkaRefusedError as error:
        _say(str(error))
        code = ExitCode.KAFKA_REFUSED
    except KeyboardInterrupt:
        _say("interrupted: the lines that follow were not sent")
        code = ExitCode.INTERNAL_ERROR
    else:
        code = ExitCode.KAFKA_REFUSED if sender.failed else ExitCode.INPUT_REFUSED if sender.refused else ExitCode.OK
    if sender is not None:
        _say(sender.summary())
    return code


def _input(path: str) -> AbstractContextManager[BinaryIO]:
    if path == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return open(path, "rb")
    except OSError as error:
        raise SettingsError([Problem("FILE", f"{path!r} can't be read: {error.strerror}")]) from None


def _say(text: str) -> None:
    print(f"produce: {text}", file=sys.stderr)
