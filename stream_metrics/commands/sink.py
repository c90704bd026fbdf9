"""`stream-metrics sink`: the output topic to one outside system, from settings to exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException

from stream_metrics.commands._clients import Complaints, KafkaRefusedError, make_consumer, partitions_of
from stream_metrics.config import Settings
from stream_metrics.exit_codes import ExitCode
from stream_metrics.sidecar import logs
from stream_metrics.sinks.base import Sink, SinkRefusedError
from stream_metrics.sinks.consumer import OWN_CONFIG, SinkConsumer
from stream_metrics.sinks.registry import open_sink

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_STOP_SECONDS: Final = 10.0
_TOOL_SECONDS: Final = 7.0
"""What a tool that is away may keep a stop waiting. Container engines kill after 10 s, and what it didn't take comes at
the next start either way."""


def main(
    settings: Settings,
    name: str,
    options: Mapping[str, Any],
    *,
    group: str | None,
    is_once: bool,
    is_all: bool,
    is_bound_to_stdin: bool = False,
) -> int:
    """Feeds a sink until a signal or an error ends it, and returns the exit code.

    Args:
        settings: Brokers, output topic, client properties and form of the log.
        name: The sink.
        options: Values of the sink's flags.
        group: The consumer group; None for `stream-metrics-sink-<name>`, or one of its own where all is taken.
        is_once: End at the end of the topic.
        is_all: Take what was taken before too, and commit nothing.
        is_bound_to_stdin: Run beside a sidecar: stop as on SIGTERM when standard input ends, by force if that takes
            long, and say in each log line which sink it is.
    """
    logs.setup(settings.log_format, settings.log_level)
    if is_bound_to_stdin:
        logs.name_lines(sink=name)
        threading.Thread(target=_stop_when_stdin_ends, daemon=True).start()
    complaints = Complaints()
    sink = open_sink(name, options)
    # Who reads all for himself must not take partitions from a sink that runs.
    default_group = f"stream-metrics-sink-{name}" + (f"-{uuid.uuid4().hex}" if is_all else "")
    own = {**OWN_CONFIG, "group.id": group or default_group}
    consumer = make_consumer(settings, own, complaints)
    has_ended = threading.Event()
    try:
        partitions_of(consumer, settings.output_topic, complaints)
        feeding = SinkConsumer(consumer, settings.output_topic, sink, is_once=is_once, is_all=is_all)

        def stop(*_: object) -> None:
            feeding.stop()
            threading.Thread(target=_end_without_the_tool, args=(sink, has_ended), daemon=True).start()
            for number in _STOP_SIGNALS:  # a second one ends it at once, also where the tool hangs
                signal.signal(number, signal.SIG_DFL)

        before = {number: signal.signal(number, stop) for number in _STOP_SIGNALS}
        try:
            feeding.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            sink.close()
    except SinkRefusedError as error:
        logs.error(str(error))
        return ExitCode.WRONG_SETTINGS
    except KafkaRefusedError as error:
        logs.error(str(error))
        return ExitCode.KAFKA_REFUSED
    except KafkaException as error:
        logs.error(complaints.told(error.args[0]))
        return ExitCode.KAFKA_REFUSED
    finally:
        consumer.close()
        has_ended.set()
    logs.info("done", taken=feeding.taken, of_older_attempts=feeding.ignored, unreadable=feeding.unreadable)
    return ExitCode.OK


def _end_without_the_tool(sink: Sink, has_ended: threading.Event) -> None:
    if not has_ended.wait(_TOOL_SECONDS):
        logs.warning("the tool doesn't answer: ending without it; what it didn't take comes at the next start")
        sink.forsake()
        logs.flush()
        os._exit(ExitCode.OK)


def _stop_when_stdin_ends() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_STOP_SECONDS)
    os._exit(ExitCode.INTERNAL_ERROR)
