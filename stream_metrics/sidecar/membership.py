"""Which member the group knows under an instance id.

Asked in a process of its own: where the broker goes away while the client asks for a group, the client ends its process
by a failed assertion (librdkafka #4605), up to half a minute after the call has timed out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from stream_metrics.config import Settings

_ANSWER_SECONDS: Final = 5.0
"""Longer waits would hold up a stop."""


def member_with(settings: Settings, instance_id: str) -> str | None:
    """Returns the member id of the group's member with that instance id, None where there is none.

    Raises:
        KafkaException: The broker doesn't say.
    """
    question = {
        "config": {**settings.client_config(), "log_level": 0},
        "group_id": settings.group_id,
        "instance_id": instance_id,
    }
    try:
        answered = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(question).encode(),  # not as an argument: there may be a password in it
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ANSWER_SECONDS,
            check=True,
        )
        member_id: str | None = json.loads(answered.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        error = KafkaError(KafkaError._TIMED_OUT, f"no answer within {_ANSWER_SECONDS:g} s")
        raise KafkaException(error) from None
    return member_id


def _ask(config: dict[str, Any], group_id: str, instance_id: str) -> str | None:
    admin = AdminClient(config)  # held by its name: without it there is no answer
    asked = admin.describe_consumer_groups([group_id], request_timeout=_ANSWER_SECONDS)
    for member in asked[group_id].result().members:
        if member.group_instance_id == instance_id:
            return str(member.member_id)
    return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_ask(**json.load(sys.stdin))))
