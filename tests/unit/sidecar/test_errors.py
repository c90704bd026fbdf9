"""What each of the client's errors means; the flags alone mislead."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from stream_metrics.exit_codes import ExitCode
from stream_metrics.sidecar.errors import (
    FencedError,
    KafkaRefusedError,
    Meaning,
    StateRefusedError,
    meaning,
    refused,
)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Meaning.WAIT),
        (KafkaError._ALL_BROKERS_DOWN, Meaning.WAIT),
        (KafkaError._TRANSPORT, Meaning.WAIT),
        (KafkaError._TIMED_OUT, Meaning.WAIT),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, Meaning.WAIT),
        (KafkaError.NOT_COORDINATOR, Meaning.WAIT),
        (KafkaError.CONCURRENT_TRANSACTIONS, Meaning.WAIT),
        (KafkaError.ILLEGAL_GENERATION, Meaning.WAIT),
        (KafkaError.UNKNOWN_MEMBER_ID, Meaning.WAIT),
        (KafkaError.NOT_LEADER_FOR_PARTITION, Meaning.WAIT),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Meaning.REFUSED),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, Meaning.REFUSED),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Meaning.REFUSED),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, Meaning.REFUSED),
        (KafkaError.OFFSET_METADATA_TOO_LARGE, Meaning.REFUSED),
        (KafkaError._AUTHENTICATION, Meaning.REFUSED),
        (KafkaError.FENCED_INSTANCE_ID, Meaning.FENCED),
        (KafkaError._FENCED, Meaning.LOST),
        (KafkaError.INVALID_PRODUCER_EPOCH, Meaning.LOST),
    ],
)
def test_an_error_has_one_meaning(code: int, expected: Meaning) -> None:
    assert meaning(KafkaError(code)) is expected


def test_the_code_of_a_fatal_error_counts_even_where_its_flag_says_otherwise() -> None:
    error = KafkaError(KafkaError._FATAL)
    assert not error.fatal()
    assert meaning(error) is Meaning.LOST


def test_any_error_that_is_fatal_means_a_new_client() -> None:
    assert meaning(KafkaError(KafkaError.UNKNOWN, "odd", True)) is Meaning.LOST


@pytest.mark.parametrize(
    ("code", "needs"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "right to read the input topic"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "consumer group"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id"),
        (KafkaError.OFFSET_METADATA_TOO_LARGE, "offset.metadata.max.bytes"),
    ],
)
def test_a_refusal_names_what_lacks(code: int, needs: str) -> None:
    error = refused(KafkaError(code), "committing")
    assert str(error).startswith("committing: ")
    assert needs in str(error)


def test_each_end_has_its_exit_code() -> None:
    assert (KafkaRefusedError.exit_code, FencedError.exit_code, StateRefusedError.exit_code) == (
        ExitCode.KAFKA_REFUSED,
        ExitCode.FENCED,
        ExitCode.STATE_REFUSED,
    )
