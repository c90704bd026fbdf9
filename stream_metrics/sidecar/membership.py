"""Whether another live replica has our instance id: which member the group knows under it, and whether that is us.

The group is asked in a process of its own: where the broker goes away meanwhile, the client ends its process by a
failed assertion (librdkafka #4605), up to half a minute after the call has timed out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from stream_metrics.config import Settings
from stream_metrics.sidecar import logs

_ANSWER_SECONDS: Final = 5.0
"""Longer waits would hold up a stop."""

LOOK_SECONDS: Final = 1.0


def is_replaced(
    ask: Callable[[], str | None],
    is_me: Callable[[str], bool],
    is_identity_ours: Callable[[], bool | None],
    session_seconds: float,
    monotonic: Callable[[], float],
    pause: Callable[[float], None],
    must_stop: Callable[[], bool],
) -> bool:
    """Returns whether another live replica has our instance id, asking until that is known; False where a stop comes.

    A member that isn't us may still be no other replica: a request to join that the network delivers late leaves one
    behind that nobody is. The transactional id tells, where its coordinator answers and our producer is still of use.
    Else time does: who sends no heartbeats is gone after a session, and who is alive is still there, or has joined
    again under another id, which nobody does for us while we wait.

    Args:
        ask: Returns the member that the group has under the instance id; raises `KafkaException` where it doesn't say.
        is_me: Tells whether a member is us.
        is_identity_ours: Tells whether the transactional id is still ours; None where nobody knows.
        session_seconds: Silence after which the group takes a member for dead.
        monotonic: Seconds that never jump.
        pause: Sleeps for some seconds.
        must_stop: Tells whether a stop was asked for.
    """
    seen, since, is_over, is_said = "", 0.0, False, False
    while not must_stop():
        try:
            holder = ask()
        except KafkaException as error:
            if not is_said:
                is_said = True
                logs.warning("the group doesn't say who has my instance id; asking on", error=error.args[0].str())
            since, is_over = monotonic(), False  # the time of a broker that stands still counts for nothing
            pause(LOOK_SECONDS)
            continue
        if holder is None or is_me(holder):
            return False
        is_ours = is_identity_ours()
        if is_ours is not None:
            return not is_ours
        now = monotonic()
        if not seen:
            seen, since = holder, now
            logs.warning("the group has another member under my instance id; looking whether it lives", member=holder)
        elif holder != seen or is_over:
            return True
        else:  # and once more after its time: a broker that has just woken up may not have looked at it yet
            is_over = now - since > session_seconds
        pause(LOOK_SECONDS)
    return False


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
