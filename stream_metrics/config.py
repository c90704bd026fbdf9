"""Every setting, defined once: a field of `Settings` gives its name, type and default, its `Setting` the rest.

A value comes from the first of: flag of the command, `STREAM_METRICS_*` variable, key of the TOML file, default.
The environment and the file are checked as a whole, whatever the command, and all that is wrong is said at once.
No Kafka here: a client property's name and value are checked by the client that gets it.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from stream_metrics.core.settings import FoldSettings, LatePolicy, RolloutReward

PREFIX: Final = "STREAM_METRICS_"
CONFIG_VARIABLE: Final = "STREAM_METRICS_CONFIG"

Group = Literal["Kafka", "Topics", "Metrics", "Life of a step", "Recovery", "Sinks", "Health and logs"]
StartFrom = Literal["earliest", "latest"]
Assignment = Literal["cooperative", "eager"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_RUN = frozenset({"run"})
_FOLD = frozenset({"run", "replay", "explain"})
_RESULTS = frozenset({"run", "sink"})
_LOGS = _FOLD | {"sink"}
_KAFKA = frozenset({"run", "dump", "produce", "follow", "sink"})
_ALL = frozenset({"run", "replay", "explain", "dump", "produce", "follow"})
_OF_PRODUCERS = frozenset(
    PREFIX + name for name in ("RUN_ID", "ATTEMPT", "PRODUCER", "PRODUCERS", "SPOOL_DIRECTORY", "DEBUG_DATA")
)
"""Variables of the trainers' hooks, which may stand in the environment of a command as well."""
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SECRET = re.compile(r"password|secret|token|jaas|credential|oauthbearer\.config|key\.pem|ssl\.key$", re.IGNORECASE)
_KUBERNETES = re.compile(r"\w*(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_KUBERNETES_ADDRESS = re.compile(r"(tcp|udp|sctp)://")

_EXACT = "the exactness of the results depends on it"
REFUSED_PROPERTIES: Final[Mapping[str, str]] = {
    "auto.offset.reset": "use --start",
    "bootstrap.servers": "use --bootstrap-servers",
    "enable.auto.commit": _EXACT,
    "enable.auto.offset.store": _EXACT,
    "enable.idempotence": _EXACT,
    "enable.partition.eof": _EXACT,
    "group.id": "use --group-id",
    "group.instance.id": "use --instance-id",
    "group.protocol": _EXACT,
    "isolation.level": _EXACT,
    "metadata.broker.list": "use --bootstrap-servers",
    "partition.assignment.strategy": "use --assignment",
    "partitioner": "all producers must choose the same partition for a run",
    "session.timeout.ms": "use --session-timeout",
    "transaction.timeout.ms": "use --transaction-timeout",
    "transactional.id": "it is made of --group-id and --instance-id",
}
"""Client properties that `kafka-config` may not set, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is said of a setting beside its name, type and default.

    Attributes:
        help: What it does, for the help and the docs.
        group: The heading it stands under.
        commands: The commands that have it as a flag.
        unit: The unit of a number.
        low: The smallest number allowed.
        high: The largest number allowed.
        form: What is allowed of a text, and the test for it.
        with_instance_id: The default where an instance id is given.
        metavar: What stands for the value in the help.
    """

    help: str
    group: Group
    commands: frozenset[str] = _RUN
    unit: str = ""
    low: float | None = None
    high: float | None = None
    form: tuple[str, Callable[[str], bool]] | None = None
    with_instance_id: float | None = None
    metavar: str | None = None


def _is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text)) and text not in (".", "..")


def _is_words(text: str) -> bool:
    try:
        return bool(shlex.split(text))
    except ValueError:  # a quote that isn't closed
        return False


def _is_address_list(text: str) -> bool:
    return all(_is_address(item.strip()) for item in text.split(","))


def _is_address(item: str) -> bool:
    match = re.fullmatch(r"(?:\w+://)?(?:[^\s:/\[\]]+|\[[0-9a-fA-F:.%\w]+\])(?::(\d{1,5}))?", item)
    return match is not None and (match[1] is None or 0 < int(match[1]) < 65536)


_TOPIC = ("a topic name: up to 249 of a-z A-Z 0-9 . _ -", _is_name)
_ID = ("a name of up to 249 of a-z A-Z 0-9 . _ -", _is_name)
_TEXT = ("a text that is not empty", bool)
_ADDRESSES = ("HOST:PORT, several separated by commas", _is_address_list)
_DAYS_30 = 30 * 86400
_DEFAULT = FoldSettings()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of all commands. `load` makes one that is checked."""

    bootstrap_servers: Annotated[
        str,
        Setting(
            help="Brokers to start from.",
            group="Kafka",
            commands=_KAFKA,
            form=_ADDRESSES,
            metavar="HOST:PORT,...",
        ),
    ] = "localhost:9092"
    kafka_config: Annotated[
        dict[str, str],
        Setting(
            help="A property of the Kafka client (librdkafka), such as security.protocol=SASL_SSL; repeatable. The "
            "variable holds one a line, or several separated by commas; the file has a table. Names are merged over "
            "the sources. What exactness depends on is refused.",
            group="Kafka",
            commands=_KAFKA,
            metavar="NAME=VALUE",
        ),
    ] = {}

    input_topic: Annotated[
        str, Setting(help="Topic of samples and close markers.", group="Topics", commands=_ALL, form=_TOPIC)
    ] = "rollout-samples"
    output_topic: Annotated[str, Setting(help="Topic of results.", group="Topics", commands=_RESULTS, form=_TOPIC)] = (
        "rollout-metrics"
    )
    dead_letter_topic: Annotated[
        str, Setting(help="Topic of records set aside, with the reason.", group="Topics", form=_TOPIC)
    ] = "rollout-dead-letters"
    create_topics: Annotated[
        bool, Setting(help="Create topics that are missing; otherwise they are waited for.", group="Topics")
    ] = False
    input_partitions: Annotated[
        int,
        Setting(
            help="Partitions of an input topic made by --create-topics. A run lives on one partition, so this bounds "
            "the replicas that have work; raising it later moves runs.",
            group="Topics",
            low=1,
            high=10_000,
        ),
    ] = 8

    reward_key: Annotated[
        str | None,
        Setting(
            help="Component to read where a reward is an object.",
            group="Metrics",
            commands=_FOLD,
            form=_TEXT,
            metavar="NAME",
        ),
    ] = _DEFAULT.reward_key
    rollout_reward: Annotated[
        RolloutReward,
        Setting(help="Rule that makes one reward of a rollout's samples.", group="Metrics", commands=_FOLD),
    ] = _DEFAULT.rollout_reward
    pass_threshold: Annotated[
        float, Setting(help="Rollout reward from which a rollout passes.", group="Metrics", commands=_FOLD)
    ] = _DEFAULT.pass_threshold
    max_names: Annotated[
        int,
        Setting(
            help="Names of one kind (statuses, data sources, ...) in one result; the rest become `other`.",
            group="Metrics",
            commands=_FOLD,
            low=1,
            high=10_000,
        ),
    ] = _DEFAULT.max_names

    pure_python: Annotated[
        bool,
        Setting(
            help="Read samples without the compiled part: slower, the same results.",
            group="Metrics",
            commands=_RUN | {"replay"},
        ),
    ] = False

    late: Annotated[
        LatePolicy,
        Setting(
            help="What becomes of a sample after its step's close: a corrected result, or a dead letter.",
            group="Life of a step",
            commands=_FOLD,
        ),
    ] = _DEFAULT.late
    close_grace_seconds: Annotated[
        float,
        Setting(
            help="How long a step waits, from its first close marker on, for the other producers and the samples they "
            "announced.",
            group="Life of a step",
            unit="seconds",
            low=0,
            high=_DAYS_30,
        ),
    ] = 60.0
    idle_timeout_seconds: Annotated[
        float,
        Setting(
            help="How long a step without close marker waits for its next sample.",
            group="Life of a step",
            unit="seconds",
            low=1,
            high=_DAYS_30,
        ),
    ] = 3600.0
    remember_steps: Annotated[
        int,
        Setting(
            help="Higher steps of a run and scope that must have closed before a closed step is forgotten, and its "
            "late samples are dead letters.",
            group="Life of a step",
            commands=_FOLD,
            low=1,
            high=100_000,
        ),
    ] = _DEFAULT.remember_steps
    remember_records: Annotated[
        int,
        Setting(
            help="Offsets after which the closed steps of a run that sends no more are forgotten.",
            group="Life of a step",
            commands=_FOLD,
            low=1,
            high=2**53 - 1,
        ),
    ] = _DEFAULT.remember_records
    max_samples: Annotated[
        int,
        Setting(
            help="Samples held per partition; past it the oldest steps are closed, incomplete.",
            group="Life of a step",
            commands=_FOLD,
            low=1,
            high=1_000_000_000,
        ),
    ] = _DEFAULT.max_samples
    max_runs: Annotated[
        int,
        Setting(
            help="Runs and scopes tracked per partition; what is kept of each must fit beside the committed offset.",
            group="Life of a step",
            commands=_FOLD,
            low=1,
            high=128,
        ),
    ] = _DEFAULT.max_runs

    group_id: Annotated[
        str, Setting(help="Consumer group that the replicas share.", group="Recovery", form=_TEXT, metavar="NAME")
    ] = "stream-metrics"
    instance_id: Annotated[
        str | None,
        Setting(
            help="This replica's own name, kept over restarts and unique in the group: makes it a static member, so "
            "that its replacement takes over at once. Without it the host's name serves for the transactions only.",
            group="Recovery",
            form=_ID,
            metavar="NAME",
        ),
    ] = None
    start: Annotated[StartFrom, Setting(help="Where a group that has committed nothing starts.", group="Recovery")] = (
        "earliest"
    )
    commit_interval_seconds: Annotated[
        float,
        Setting(
            help="Longest time between commits of the offsets while nothing is published.",
            group="Recovery",
            unit="seconds",
            low=0.01,
            high=600,
        ),
    ] = 5.0
    transaction_timeout_seconds: Annotated[
        float,
        Setting(
            help="Age at which the broker aborts a transaction; a replacement may wait for that. Must be below "
            "--session-timeout.",
            group="Recovery",
            unit="seconds",
            low=1,
            high=900,
            with_instance_id=8.0,
        ),
    ] = 10.0
    session_timeout_seconds: Annotated[
        float,
        Setting(
            help="Silence after which the group takes a replica for dead.",
            group="Recovery",
            unit="seconds",
            low=1,
            high=1800,
            with_instance_id=10.0,
        ),
    ] = 45.0
    assignment: Annotated[
        Assignment, Setting(help="How partitions move between replicas; the same for all of a group.", group="Recovery")
    ] = "cooperative"
    adopt_offsets: Annotated[
        bool,
        Setting(help="Go on from committed offsets that aren't ours, instead of exit code 5.", group="Recovery"),
    ] = False
    accept_changed_replay: Annotated[
        bool,
        Setting(
            help="Go on where the log replays to something else than was committed, after an upgrade, changed "
            "settings or a changed log, instead of exit code 5.",
            group="Recovery",
        ),
    ] = False

    sink: Annotated[
        tuple[str, ...],
        Setting(
            help="A sink that runs beside the sidecar in a process of its own, with its flags, such as 'jsonl --path "
            "results.jsonl'; repeatable. The variable holds one a line; the file has a list.",
            group="Sinks",
            form=("NAME or 'NAME FLAG...' as of stream-metrics sink", _is_words),
            metavar="'NAME FLAG...'",
        ),
    ] = ()

    http_host: Annotated[
        str, Setting(help="Address to listen on.", group="Health and logs", form=_TEXT, metavar="ADDRESS")
    ] = "127.0.0.1"
    http_port: Annotated[
        int,
        Setting(
            help="Port of /metrics, /healthz, /readyz and the page; 0 for none.",
            group="Health and logs",
            low=0,
            high=65535,
            metavar="PORT",
        ),
    ] = 0
    dead_letter_limit: Annotated[
        float,
        Setting(
            help="Share of the records that are dead letters above which /healthz fails; 1 for never.",
            group="Health and logs",
            low=0,
            high=1,
            metavar="SHARE",
        ),
    ] = 0.5
    log_format: Annotated[
        LogFormat, Setting(help="Form of the log lines.", group="Health and logs", commands=_LOGS)
    ] = "text"
    log_level: Annotated[LogLevel, Setting(help="Least level logged.", group="Health and logs", commands=_LOGS)] = (
        "info"
    )

    def __repr__(self) -> str:
        return f"Settings({self.shown()})"

    def fold(self) -> FoldSettings:
        """Returns the settings that change results."""
        return FoldSettings(**{name: getattr(self, name) for name in FoldSettings.__struct_fields__})

    def client_config(self) -> dict[str, Any]:
        """Returns what every Kafka client gets: the brokers and `kafka_config`. Callers add their own on top."""
        return {**self.kafka_config, "bootstrap.servers": self.bootstrap_servers}

    def shown(self) -> dict[str, Any]:
        """Returns all settings by name, secrets replaced by `***`, for the log."""
        values = {definition.name: getattr(self, definition.field) for definition in DEFINITIONS}
        values["kafka-config"] = {
            name: "***" if _SECRET.search(name) else value for name, value in self.kafka_config.items()
        }
        values["sink"] = [text.split()[0] for text in self.sink]  # an address among its flags may hold a password
        return values


Kind = Literal["text", "integer", "number", "switch", "choice", "table", "list"]
_KINDS: Final[Mapping[Any, Kind]] = {str: "text", int: "integer", float: "number", bool: "switch"}


@dataclass(frozen=True, slots=True)
class Definition:
    """A field of `Settings` as the sources and the help need it.

    Attributes:
        field: The name of the field.
        name: The name of the key; the field's without its unit.
        kind: What values it takes.
        is_optional: None is a value, and the default.
        choices: The words allowed of a choice.
        default: The field's default.
        about: The rest.
    """

    field: str
    name: str
    kind: Kind
    is_optional: bool
    choices: tuple[str, ...]
    default: Any
    about: Setting

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        return PREFIX + self.name.replace("-", "_").upper()

    @property
    def allowed(self) -> str:
        """What is allowed, to stand after "must be"."""
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        if self.kind == "switch":
            return "true or false"
        if self.kind == "table":
            return "NAME=VALUE with the name of a client property"
        if self.kind in ("text", "list"):
            return self.about.form[0] if self.about.form else "a text"
        noun = "a whole number" if self.kind == "integer" else "a number"
        unit = f" of {self.about.unit}" if self.about.unit else ""
        if self.about.low is None or self.about.high is None:
            return noun + unit
        return f"{noun}{unit} from {self.about.low:.12g} to {self.about.high:.16g}"

    @property
    def default_shown(self) -> str:
        """The default as the help says it."""
        if self.default is None or self.kind in ("table", "list"):
            return "none"
        if self.kind == "switch":
            return "off"
        if not isinstance(self.default, float):
            return str(self.default)
        shown = f"{self.default:g} {self.about.unit}".rstrip()
        if self.about.with_instance_id is not None:
            shown += f"; {self.about.with_instance_id:g} with --instance-id"
        return shown


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the settings.

    Attributes:
        source: The flag, variable or key of a file.
        what: The value given and what is allowed.
    """

    source: str
    what: str

    def __str__(self) -> str:
        return f"{self.source}: {self.what}"


class SettingsError(ValueError):
    """The settings are wrong; the message lists everything that is. The command line ends with exit code 2."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 setting is" if len(self.problems) == 1 else f"{len(self.problems)} settings are"
        super().__init__("\n".join([f"{count} wrong:", *(f"  {problem}" for problem in self.problems)]))


@dataclass(frozen=True, slots=True)
class _Given:
    value: Any
    source: str


def _define() -> Iterator[Definition]:
    hints = typing.get_type_hints(Settings, include_extras=True)
    for info in msgspec.structs.fields(Settings):
        kind, about = typing.get_args(hints[info.name])
        is_optional = typing.get_origin(kind) is types.UnionType
        if is_optional:
            kind = next(part for part in typing.get_args(kind) if part is not type(None))
        is_choice = typing.get_origin(kind) is Literal
        is_table = typing.get_origin(kind) is dict
        is_list = typing.get_origin(kind) is tuple
        yield Definition(
            field=info.name,
            name=info.name.removesuffix("_seconds").replace("_", "-"),
            kind="choice" if is_choice else "table" if is_table else "list" if is_list else _KINDS[kind],
            is_optional=is_optional,
            choices=typing.get_args(kind) if is_choice else (),
            default={} if is_table else info.default,
            about=about,
        )


DEFINITIONS: Final = tuple(_define())
_BY_NAME: Final = {definition.name: definition for definition in DEFINITIONS}
_BY_VARIABLE: Final = {definition.variable: definition for definition in DEFINITIONS}


def for_command(command: str) -> list[Definition]:
    """Returns the settings that a command has as flags, in the order of the help."""
    return [definition for definition in DEFINITIONS if command in definition.about.commands]


def load(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    config_file: str | None = None,
    problems: Iterable[Problem] = (),
) -> Settings:
    """Returns the settings, checked.

    Args:
        flags: What the command line gave, by the setting's name; a list of texts for `kafka-config`.
        environment: All variables of the process.
        config_file: The path of the TOML file, where the command line gave one.
        problems: What the caller found wrong already, to be said in the same message.

    Raises:
        SettingsError: Something is wrong. The command line should catch it.
    """
    found = list(problems)
    sources = [
        {name: _Given(value, f"--{name}") for name, value in flags.items() if value is not None},
        _read_environment(environment, found),
        _read_file(config_file, environment, found),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    wrong: set[str] = set()
    for definition in DEFINITIONS:
        givens = [source[definition.name] for source in sources if definition.name in source]
        if definition.kind == "table":
            values[definition.name] = _merge_properties(givens, found)
            continue
        origins[definition.name] = "default"
        values[definition.name] = definition.default
        if not givens:
            continue
        try:
            values[definition.name] = _parse(definition, givens[0].value)
            origins[definition.name] = givens[0].source
        except ValueError:
            wrong.add(definition.name)
            found.append(Problem(givens[0].source, f"{givens[0].value!r} must be {definition.allowed}"))
    if values["instance-id"] is not None:
        for definition in DEFINITIONS:
            if origins.get(definition.name) == "default" and definition.about.with_instance_id is not None:
                values[definition.name] = definition.about.with_instance_id
    found += _check_together(values, origins, wrong)
    if found:
        raise SettingsError(found)
    return Settings(**{definition.field: values[definition.name] for definition in DEFINITIONS})


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean ...?" for the known name that is closest, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _read_environment(environment: Mapping[str, str], found: list[Problem]) -> dict[str, _Given]:
    given = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE or variable in _OF_PRODUCERS:
            continue
        if _is_from_kubernetes(variable, value):
            continue
        definition = _BY_VARIABLE.get(variable)
        if definition is None:
            found.append(Problem(variable, f"is no variable of ours{suggest(variable, _BY_VARIABLE)}"))
        elif value.strip():  # an empty variable is how compose files say "not set"
            given[definition.name] = _Given(value.strip(), variable)
    return given


def _is_from_kubernetes(variable: str, value: str) -> bool:
    """Tells the variables that Kubernetes makes of a service named `stream-metrics` or `stream-metrics-...`."""
    if variable.endswith("_PORT") and _KUBERNETES_ADDRESS.match(value):
        return True
    return variable not in _BY_VARIABLE and bool(_KUBERNETES.fullmatch(variable))


def _read_file(config_file: str | None, environment: Mapping[str, str], found: list[Problem]) -> dict[str, _Given]:
    source = "--config"
    if config_file is None:
        config_file, source = environment.get(CONFIG_VARIABLE, "").strip(), CONFIG_VARIABLE
    if not config_file:
        return {}
    try:
        table = tomllib.loads(Path(config_file).read_text(encoding="utf-8"))
    except OSError as error:
        found.append(Problem(source, f"{config_file!r} can't be read: {error.strerror}"))
        return {}
    except ValueError as error:
        found.append(Problem(source, f"{config_file!r} is no TOML: {error}"))
        return {}
    given: dict[str, _Given] = {}
    for key, value in table.items():
        name, place = key.replace("_", "-"), f"{key} in {config_file}"
        if name not in _BY_NAME:
            found.append(Problem(place, f"is no setting{suggest(name, _BY_NAME)}"))
        elif name in given:
            found.append(Problem(place, "is given twice"))
        else:
            given[name] = _Given(value, place)
    return given


def _parse(definition: Definition, value: Any) -> Any:
    """Returns the value in the setting's type; raises ValueError where it's not allowed."""
    if definition.kind == "switch":
        return _switch(value)
    if definition.kind in ("integer", "number"):
        return _number(definition, value)
    if definition.kind == "list":
        items = [line for line in value.splitlines() if line.strip()] if isinstance(value, str) else value
        if not isinstance(items, list):
            raise ValueError
        return tuple(_parse_text(definition, item) for item in items)
    return _parse_text(definition, value)


def _parse_text(definition: Definition, value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError
    if definition.kind == "choice":
        if value.lower() not in definition.choices:
            raise ValueError
        return value.lower()
    if definition.is_optional and not value:
        return None
    if definition.about.form is not None and not definition.about.form[1](value):
        raise ValueError
    return value


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if not isinstance(value, str) or value.lower() not in words:
        raise ValueError
    return words[value.lower()]


def _number(definition: Definition, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    number: int | float
    if definition.kind == "integer":
        if isinstance(value, float):
            raise ValueError
        number = int(value)
    else:
        try:
            number = float(value)
        except OverflowError:
            raise ValueError from None
    low, high = definition.about.low, definition.about.high
    if (
        (isinstance(number, float) and not math.isfinite(number))
        or (low is not None and number < low)
        or (high is not None and number > high)
    ):
        raise ValueError
    return number


def _merge_properties(givens: list[_Given], found: list[Problem]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for given in reversed(givens):
        for name, value in _properties(given, found):
            if name in REFUSED_PROPERTIES:
                found.append(Problem(given.source, f"may not set {name}: {REFUSED_PROPERTIES[name]}"))
            else:
                merged[name] = value
    return merged


def _properties(given: _Given, found: list[Problem]) -> Iterator[tuple[str, str]]:
    """Yields names and values; what is wrong is told without the values, which may be secrets."""
    if isinstance(given.value, dict):
        yield from _flatten(given.value, "", given.source, found)
        return
    items = given.value
    if isinstance(items, str):
        items = items.split("\n" if "\n" in items else ",")
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        found.append(Problem(given.source, 'must be a table of client properties, such as "security.protocol" = "SSL"'))
        return
    for place, item in enumerate(items, 1):
        name, sign, value = (part.strip() for part in item.partition("="))
        if sign and name:
            yield name, value
        elif item.strip():
            hint = "; with commas in a value, write one NAME=VALUE a line" if isinstance(given.value, str) else ""
            found.append(Problem(given.source, f"item {place} must be NAME=VALUE{hint}"))


def _flatten(table: dict[str, Any], prefix: str, source: str, found: list[Problem]) -> Iterator[tuple[str, str]]:
    # TOML reads a dotted name without quotes as tables inside tables.
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, f"{name}.", source, found)
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, str | int | float):
            yield name, str(value)
        else:
            found.append(Problem(source, f"{name} must be a text, a number, true or false"))


def _check_together(values: Mapping[str, Any], origins: Mapping[str, str], wrong: set[str]) -> Iterator[Problem]:
    def sources(*names: str) -> str:
        return ", ".join(f"{name} ({origins[name]})" for name in names)

    timeouts = ("transaction-timeout", "session-timeout")
    if wrong.isdisjoint(timeouts) and values[timeouts[0]] >= values[timeouts[1]]:
        yield Problem(
            sources(*timeouts),
            f"transaction-timeout {values[timeouts[0]]:g} must be below session-timeout {values[timeouts[1]]:g}",
        )
    by_topic: dict[str, list[str]] = {}
    for name in ("input-topic", "output-topic", "dead-letter-topic"):
        if name not in wrong:
            by_topic.setdefault(values[name], []).append(name)
    for topic, names in by_topic.items():
        if len(names) > 1:
            yield Problem(sources(*names), f"{topic!r} is given for each, but they must be different topics")
