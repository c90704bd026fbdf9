"""What the exit code of a command says; the one table that the help, the docs and the commands share."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0
    INTERNAL_ERROR = 1
    WRONG_SETTINGS = 2
    KAFKA_REFUSED = 3
    FENCED = 4
    STATE_REFUSED = 5
    INPUT_REFUSED = 6


MEANINGS = {
    ExitCode.OK: "done, or stopped cleanly on SIGTERM or SIGINT",
    ExitCode.INTERNAL_ERROR: "internal error, or interrupted before the work was done",
    ExitCode.WRONG_SETTINGS: "wrong settings or usage; nothing was started",
    ExitCode.KAFKA_REFUSED: "broker, topic or permission: can't go on",
    ExitCode.FENCED: "fenced: another live replica has this identity",
    ExitCode.STATE_REFUSED: "state refused: the committed offset isn't ours, or its replay doesn't match",
    ExitCode.INPUT_REFUSED: "lines of the input can't be used, each named on standard error (produce sends the others)",
}
