"""The topics before the first record: there or made, of a kind that keeps the promises, and ours to read and write."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # names that its stubs leave out
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from stream_metrics.config import Settings
from stream_metrics.sidecar import logs
from stream_metrics.sidecar.errors import KafkaRefusedError, Meaning, StoppingError, meaning, refused
from stream_metrics.sidecar.input_topic import InputTopic

_CALL_SECONDS: Final = 1.0
_DEFAULT_MAX_MESSAGE_BYTES: Final = 1_048_588


class Topics:
    """The three topics of a sidecar.

    Args:
        settings: Names of the topics, and whether to create them.
        is_stopping: Tells whether a stop was asked for.
        turn: Called while waiting, to show that the loop is alive.
        pause: Sleeps for some seconds.
        show: Gets what is waited for, where that changes.
    """

    def __init__(
        self,
        settings: Settings,
        is_stopping: Callable[[], bool],
        turn: Callable[[], None],
        pause: Callable[[float], None] = time.sleep,
        show: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._is_stopping = is_stopping
        self._turn = turn
        self._pause = pause
        self._show = show
        self._said_not_yet: set[str] = set()
        self._client_says: KafkaError | None = None
        self._admin = self._make_admin()

    def prepare(self) -> None:
        """Returns when all three topics are there and usable.

        Raises:
            KafkaRefusedError: A topic can't be used or created.
            StoppingError: A stop was asked for while waiting.
        """
        self._wait_for_topics()
        self._check_rights()
        self._check_input()
        self._check_output()

    def input_topic(self) -> InputTopic:
        """Returns what tells the input topic from another one of its name; nothing more can be asked here.

        It has a client of its own. The one that was used until now would be served by nobody, and pile up what it has
        to tell.
        """
        del self._admin
        return InputTopic(self._make_admin, self._settings.input_topic)

    def dead_letter_max_bytes(self) -> int:
        """Returns the largest record that the dead-letter topic takes."""
        limit = self._config_of(self._settings.dead_letter_topic).get("max.message.bytes")
        return int(limit) if limit else _DEFAULT_MAX_MESSAGE_BYTES

    def _make_admin(self) -> AdminClient:
        config: dict[str, Any] = {"log_level": 2, **self._settings.client_config(), "error_cb": self._on_error}
        return AdminClient(config, logger=logs.CLIENT_LOGGER)

    def _wait_for_topics(self) -> None:
        settings = self._settings
        wanted = (settings.input_topic, settings.output_topic, settings.dead_letter_topic)
        said = ""
        while True:
            state = self._missing(wanted)
            if isinstance(state, list) and not state:
                if said:
                    logs.info("the topics are there", topics=",".join(wanted))
                return
            if isinstance(state, list):
                if settings.create_topics:
                    self._create(state)
                    continue
                message = f"waiting for missing topics: {', '.join(state)}; create them, or run with --create-topics"
            else:
                message = f"waiting for the broker at {settings.bootstrap_servers}: {state}"
            if message != said:
                self._show(message)
                logs.warning(message)
                said = message
            self._wait(_CALL_SECONDS)

    def _missing(self, wanted: tuple[str, ...]) -> list[str] | str:
        """Returns the missing topics, or what keeps the broker from saying."""
        try:
            there = self._admin.list_topics(timeout=_CALL_SECONDS).topics
        except KafkaException as error:
            # The call itself says no more than that nobody answers; why is told beside it.
            self._admin.poll(0)
            why, self._client_says = self._client_says, None
            if why is None:
                why = error.args[0]
            if meaning(why) is Meaning.REFUSED:
                raise refused(why, f"asking {self._settings.bootstrap_servers} for the topics") from None
            return why.str().partition(" (after ")[0]  # how long it took would make a new line of each try
        return [topic for topic in wanted if topic not in there or there[topic].error is not None]

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return
        if self._client_says is None or meaning(self._client_says) is not Meaning.REFUSED:
            self._client_says = error

    def _create(self, missing: list[str]) -> None:
        settings = self._settings
        kinds = {
            settings.input_topic: (settings.input_partitions, {"cleanup.policy": "delete"}),
            settings.output_topic: (1, {"cleanup.policy": "compact"}),
            settings.dead_letter_topic: (1, {"cleanup.policy": "delete"}),
        }
        made = self._admin.create_topics(
            [NewTopic(topic, num_partitions=kinds[topic][0], config=kinds[topic][1]) for topic in missing],
            operation_timeout=5,
            request_timeout=5,
        )
        not_yet = []
        for topic, future in made.items():
            try:
                future.result()
                logs.info("created topic", topic=topic, partitions=kinds[topic][0], **kinds[topic][1])
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                if meaning(error.args[0]) is Meaning.REFUSED or code in (
                    KafkaError.POLICY_VIOLATION,
                    KafkaError.TOPIC_EXCEPTION,
                ):
                    raise KafkaRefusedError(f"can't create topic {topic!r}: {error.args[0].str()}") from None
                # Too few brokers for its replicas is one of these: in a cluster that starts it passes.
                not_yet.append(f"can't create topic {topic!r} yet: {error.args[0].str()}")
        for message in set(not_yet) - self._said_not_yet:
            logs.warning(message)
        self._said_not_yet = set(not_yet)
        self._wait(_CALL_SECONDS if not_yet else _CALL_SECONDS / 4)

    def _check_rights(self) -> None:
        settings = self._settings
        write = {AclOperation.WRITE}
        needed = {
            settings.input_topic: {AclOperation.READ, AclOperation.WRITE},
            settings.output_topic: write,
            settings.dead_letter_topic: write,
        }
        futures = self._admin.describe_topics(
            TopicCollection(list(needed)), include_authorized_operations=True, request_timeout=5
        )
        for topic, future in futures.items():
            try:
                allowed = future.result().authorized_operations
            except KafkaException as error:
                logs.warning("can't read my rights on topic", topic=topic, error=error.args[0].str())
                continue
            if allowed is None:
                continue
            lacking = sorted(operation.name for operation in needed[topic] - set(allowed))
            if lacking and AclOperation.ALL not in allowed:
                why = " (timeout markers are written to it)" if topic == settings.input_topic else ""
                raise KafkaRefusedError(f"no right to {' and '.join(lacking)} topic {topic!r}{why}")

    def _check_input(self) -> None:
        settings = self._settings
        topic, config = settings.input_topic, self._config_of(settings.input_topic)
        if "compact" in config.get("cleanup.policy", ""):
            raise KafkaRefusedError(
                f"input topic {topic!r} is compacted (cleanup.policy={config['cleanup.policy']}): compaction drops "
                "samples, and the log is the state; use a topic with cleanup.policy=delete"
            )
        needed_ms = int(1000 * 2 * (settings.idle_timeout_seconds + settings.close_grace_seconds))
        retention_ms = int(config.get("retention.ms") or -1)
        if 0 <= retention_ms < needed_ms:
            logs.warning(
                "the input topic's retention can drop samples of open steps: they would come out incomplete, data_lost",
                topic=topic,
                retention_ms=retention_ms,
                advised_ms=needed_ms,
            )
        if int(config.get("retention.bytes") or -1) >= 0:
            logs.warning(
                "the input topic is bounded in bytes: under load it can drop samples of open steps",
                topic=topic,
                retention_bytes=config["retention.bytes"],
            )

    def _check_output(self) -> None:
        topic = self._settings.output_topic
        policy = self._config_of(topic).get("cleanup.policy")
        if policy is not None and "compact" not in policy:
            logs.warning(
                "the output topic is not compacted: results older than its retention are lost to readers",
                topic=topic,
                cleanup_policy=policy,
            )

    def _config_of(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            entries: dict[str, Any] = self._admin.describe_configs([resource], request_timeout=5)[resource].result()
        except KafkaException as error:
            logs.warning("can't read the configuration of topic", topic=topic, error=error.args[0].str())
            return {}
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def _wait(self, seconds: float) -> None:
        self._turn()
        self._admin.poll(0)  # what the client tells meanwhile must not pile up
        if self._is_stopping():
            raise StoppingError
        self._pause(seconds)
