"""Which member the group knows under an instance id."""

from __future__ import annotations

from typing import Final

from confluent_kafka.admin import AdminClient

from stream_metrics.config import Settings

_ANSWER_SECONDS: Final = 5.0
"""Longer waits would hold up a stop."""


def member_with(settings: Settings, instance_id: str) -> str | None:
    """Returns the member id of the group's member with that instance id, None where there is none.

    Raises:
        KafkaException: The broker doesn't say.
    """
    admin = AdminClient({**settings.client_config(), "log_level": 2})
    asked = admin.describe_consumer_groups([settings.group_id], request_timeout=_ANSWER_SECONDS)
    for member in asked[settings.group_id].result().members:
        if member.group_instance_id == instance_id:
            return str(member.member_id)
    return None
