"""Log lines: one an event, `key=value` behind the message, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TextIO

LOGGER = logging.getLogger("stream_metrics")

CLIENT_LOGGER = LOGGER.getChild("client")
"""For what the Kafka client has to say: it would write lines of its own form otherwise."""


class Step(Protocol):
    """A window, a result: whatever is of one step."""

    @property
    def run_id(self) -> str: ...

    @property
    def scope(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def step(self) -> int: ...


def setup(form: Literal["text", "json"], level: str, stream: TextIO | None = None) -> None:
    """Sends the package's log lines to a stream, standard error by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False


def name_lines(**fields: Any) -> None:
    """Each line has these fields, for a process whose lines stand among those of others."""

    def add(record: logging.LogRecord) -> bool:
        record.fields = {**fields, **getattr(record, "fields", {})}
        return True

    for handler in LOGGER.handlers:
        handler.addFilter(add)


def flush() -> None:
    """Writes out what is buffered."""
    for handler in LOGGER.handlers:
        handler.flush()


def named(one: Step) -> dict[str, Any]:
    """Returns the fields that name a step."""
    return {"run_id": one.run_id, "scope": one.scope, "attempt": one.attempt, "step": one.step}


def info(message: str, **fields: Any) -> None:
    LOGGER.info(message, extra={"fields": fields})


def warning(message: str, **fields: Any) -> None:
    LOGGER.warning(message, extra={"fields": fields})


def error(message: str, **fields: Any) -> None:
    LOGGER.error(message, extra={"fields": fields})


def debug(message: str, **fields: Any) -> None:
    LOGGER.debug(message, extra={"fields": fields})


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        told = "".join(f" {name}={_shown(value)}" for name, value in fields.items() if value is not None)
        line = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()}{told}"
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    plain = text.isprintable() and text and not any(character in text for character in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())
