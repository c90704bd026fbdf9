"""What the client's errors mean here, in one table, and the errors that end the sidecar.

The flags of a `KafkaError` alone mislead: an unknown topic says "not retriable" though it may appear in a second, and
the calls after a fatal error say "not fatal" with the code `_FATAL`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from stream_metrics.exit_codes import ExitCode


class Meaning(Enum):
    WAIT = "it passes: wait and go on"
    REFUSED = "a right is missing or a setting is wrong: stop"
    FENCED = "another live replica has our identity: stop"
    LOST = "this client is of no use any more: make a new one"


_MEANINGS: Final[dict[int, Meaning]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Meaning.REFUSED,
    KafkaError.GROUP_AUTHORIZATION_FAILED: Meaning.REFUSED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Meaning.REFUSED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Meaning.REFUSED,
    KafkaError.SASL_AUTHENTICATION_FAILED: Meaning.REFUSED,
    KafkaError.INVALID_TRANSACTION_TIMEOUT: Meaning.REFUSED,
    KafkaError.INVALID_SESSION_TIMEOUT: Meaning.REFUSED,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: Meaning.REFUSED,
    KafkaError.OFFSET_METADATA_TOO_LARGE: Meaning.REFUSED,
    KafkaError._AUTHENTICATION: Meaning.REFUSED,
    KafkaError.FENCED_INSTANCE_ID: Meaning.FENCED,
    KafkaError._FENCED: Meaning.LOST,
    KafkaError._FATAL: Meaning.LOST,
    KafkaError.PRODUCER_FENCED: Meaning.LOST,
    KafkaError.INVALID_PRODUCER_EPOCH: Meaning.LOST,
}

_RIGHTS: Final[dict[int, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the right to read the input topic or to write all three topics",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the right to read the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the right to write idempotently on the cluster, or to create topics",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the right to write and describe the transactional id",
    KafkaError.OFFSET_METADATA_TOO_LARGE: (
        "room beside the committed offset: raise the broker's offset.metadata.max.bytes to 4096, or lower --max-runs"
    ),
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "one --assignment for all replicas of the group",
}


_FENCED_MEMBER: Final = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()


def meaning(error: KafkaError) -> Meaning:
    """Returns what a client's error means; `WAIT` for all that the client gets over by itself."""
    # Of a static member that was replaced the client says `_FATAL`, and only in its text what happened.
    if error.code() == KafkaError._FATAL and _FENCED_MEMBER in error.str():
        return Meaning.FENCED
    known = _MEANINGS.get(error.code())
    if known is not None:
        return known
    return Meaning.LOST if error.fatal() else Meaning.WAIT


CLIENT_ERRORS: Final = (KafkaException, SystemError)
"""What a client's call may raise. A fatal error comes out of any call that serves callbacks, and where one more
callback runs before that call is left, Python wraps it in a SystemError."""


def client_error(error: BaseException) -> KafkaError:
    """Returns the `KafkaError` in what a client's call has raised; raises again what holds none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KafkaException) and cause.args and isinstance(cause.args[0], KafkaError):
            return cause.args[0]
        cause = cause.__cause__ or cause.__context__
    raise error


class SidecarError(Exception):
    """Ends the sidecar with an exit code; the message says what is wrong and what to do."""

    exit_code = ExitCode.INTERNAL_ERROR


class WrongSettingsError(SidecarError):
    """The client refuses a property that it was given."""

    exit_code = ExitCode.WRONG_SETTINGS


class KafkaRefusedError(SidecarError):
    """The broker, a topic or a missing right doesn't let the sidecar go on."""

    exit_code = ExitCode.KAFKA_REFUSED


class FencedError(SidecarError):
    """Another live replica has this replica's identity."""

    exit_code = ExitCode.FENCED


class StateRefusedError(SidecarError):
    """The committed offset isn't ours, or its replay doesn't give what was committed."""

    exit_code = ExitCode.STATE_REFUSED


class RestartError(Exception):
    """The clients are of no use any more: begin again from the committed offsets. Never leaves the sidecar.

    Args:
        message: Why.
        is_replaced_perhaps: Whether it may be another replica's doing: a producer whose transaction was too old can't
            tell the broker that ended it from a replica that took its identity over.
    """

    def __init__(self, message: str, *, is_replaced_perhaps: bool = False) -> None:
        super().__init__(message)
        self.is_replaced_perhaps = is_replaced_perhaps


class StoppingError(Exception):
    """A stop was asked for while waiting. Never leaves the sidecar."""


def refused(error: KafkaError, doing: str) -> KafkaRefusedError:
    """Returns the error that ends the sidecar when Kafka refuses something for good."""
    needed = _RIGHTS.get(error.code())
    return KafkaRefusedError(f"{doing}: {error.str()}" + (f"; this needs {needed}" if needed else ""))
