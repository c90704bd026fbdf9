"""Makes the producer of a hook from the environment: a hook is named on a trainer's command line and gets no arguments
of ours.

Address, topic and client properties are the sidecar's own variables; the rest is the producer's.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from stream_metrics import events
from stream_metrics.producers.client import DEFAULT_TOPIC, RolloutProducer, start_time_attempt

PREFIX: Final = "STREAM_METRICS_"
VARIABLES: Final[Mapping[str, str]] = {
    "BOOTSTRAP_SERVERS": "brokers to start from; localhost:9092 by default",
    "INPUT_TOPIC": f"the sidecar's input topic; {DEFAULT_TOPIC} by default",
    "KAFKA_CONFIG": "client properties, NAME=VALUE, one a line or several separated by commas",
    "RUN_ID": "the training job; the same after a restart",
    "ATTEMPT": "the trainer's try; the same in all processes of one try, higher in the next",
    "PRODUCER": "this process's name among several producers of one step",
    "PRODUCERS": "how many these are",
    "SPOOL_DIRECTORY": "where events wait that can't be sent",
}
"""What hooks read, each with the prefix in front."""

_log = logging.getLogger(__name__)


def producer_from_environment(
    environment: Mapping[str, str] | None = None,
    *,
    run_id: str | None = None,
    is_only_process: bool = False,
    **defaults: Any,
) -> RolloutProducer:
    """Returns a producer as the environment describes it.

    Args:
        environment: The variables; None takes the process's.
        run_id: The run where the environment names none; None is a run named "default".
        is_only_process: No other process emits samples of the run, so that the time of its start tells its attempt.
        **defaults: Arguments of `RolloutProducer` where the environment has none.

    Raises:
        ValueError: A variable makes no sense; the message names it.
    """
    variables = os.environ if environment is None else environment

    def text(name: str) -> str | None:
        return variables.get(PREFIX + name, "").strip() or None

    settings: dict[str, Any] = dict(defaults)
    named = text("RUN_ID") or run_id
    if named is None:
        _log.warning("%sRUN_ID isn't set: the run is %r, and two such runs get mixed up", PREFIX, events.DEFAULT_RUN_ID)
    settings["run_id"] = named or events.DEFAULT_RUN_ID
    if (attempt := text("ATTEMPT")) is not None:
        settings["attempt"] = _integer("ATTEMPT", attempt, 0)
    elif is_only_process:
        settings["attempt"] = start_time_attempt()
    if (producer := text("PRODUCER")) is not None:
        settings["producer"] = producer
    if (producers := text("PRODUCERS")) is not None:
        settings["producers"] = _integer("PRODUCERS", producers, 1)
    if (spool := variables.get(PREFIX + "SPOOL_DIRECTORY")) is not None:
        settings["spool_directory"] = spool.strip()
    if (config := text("KAFKA_CONFIG")) is not None:
        settings["client_config"] = {**settings.get("client_config", {}), **_properties(config)}
    topic = text("INPUT_TOPIC") or DEFAULT_TOPIC
    return RolloutProducer(text("BOOTSTRAP_SERVERS") or "localhost:9092", topic, **settings)


class SharedProducer:
    """One producer for all hooks of a process, made when first needed; where it can't be made, that is said once."""

    def __init__(self, make: Callable[..., RolloutProducer] = producer_from_environment) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._producer: RolloutProducer | None = None
        self._has_failed = False

    def get(self, **arguments: Any) -> RolloutProducer | None:
        """Returns the producer, made with the arguments the first time; None where it can't be made. Never raises."""
        with self._lock:
            if self._producer is None and not self._has_failed:
                try:
                    self._producer = self._make(**arguments)
                except Exception as error:
                    self._has_failed = True
                    _log.error("no samples are sent to stream-metrics: %s", error)
            return self._producer

    def set(self, producer: RolloutProducer | None) -> None:
        """Uses this producer from now on; None makes one when next needed."""
        with self._lock:
            self._producer = producer
            self._has_failed = False


shared = SharedProducer()
"""The producer of this process's hooks."""


def _integer(name: str, text: str, low: int) -> int:
    if not (text.isascii() and text.isdigit() and low <= int(text) <= events.MAX_INTEGER):
        raise ValueError(f"{PREFIX}{name} must be an integer from {low} to 2^53 - 1, not {text!r}")
    return int(text)


def _properties(text: str) -> dict[str, str]:
    lines = text.splitlines() if "\n" in text else text.split(",")
    found = {}
    for line in filter(None, (line.strip() for line in lines)):
        name, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"{PREFIX}KAFKA_CONFIG must hold NAME=VALUE, not {name!r}")
        found[name.strip()] = value.strip()
    return found
