"""What followers of a trainer's files have in common: a small file of ours that remembers, and complaints made once."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

STATE_NAME: Final = ".stream-metrics-follow.json"

_log = logging.getLogger(__name__)


class SayOnce:
    """Warns of each cause once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, cause: str, message: str, *arguments: object) -> None:
        if cause not in self._said:
            self._said.add(cause)
            _log.warning(message, *arguments)


class StateFile:
    """What is remembered over restarts.

    Args:
        path: Of the file.
        say: Told once that it can't be written.
    """

    def __init__(self, path: Path, say: SayOnce) -> None:
        self._path = path
        self._say = say

    def read(self, take: Callable[[Any], None]) -> bool:
        """Has what is remembered taken; returns whether there was something, and all of it of use."""
        try:
            take(json.loads(self._path.read_bytes()))
            return True
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("%s can't be used, so all steps that are there are sent again: %s", self._path, error)
            return False

    def write(self, state: Any) -> bool:
        """Remembers this instead, and returns whether it could: what was there before stays until all is written."""
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(state), encoding="utf-8")
            beside.replace(self._path)
            return True
        except OSError as error:
            self._say("state", "%s can't be written, so a restart sends all steps again: %s", self._path, error)
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            return False
