from pathlib import Path

import pytest

from stream_metrics.config import DEFINITIONS, PREFIX, Settings, SettingsError, for_command, load
from stream_metrics.core.settings import FoldSettings


def problems(
    flags: dict[str, object] | None = None, environment: dict[str, str] | None = None, config_file: str | None = None
) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(flags or {}, environment or {}, config_file=config_file)
    return [str(problem) for problem in caught.value.problems]


def toml(folder: Path, text: str) -> str:
    path = folder / "metrics.toml"
    path.write_text(text)
    return str(path)


def test_without_anything_all_is_default() -> None:
    assert load({}, {"PATH": "/bin"}) == Settings()


def test_the_fold_s_defaults_are_the_fold_s_own() -> None:
    assert Settings().fold() == FoldSettings()


def test_every_setting_of_the_fold_reaches_it() -> None:
    changed = {
        "reward-key": "score",
        "rollout-reward": "last",
        "late": "dead_letter",
        "remember-steps": "3",
        "remember-records": "7",
        "max-samples": "8",
        "max-runs": "9",
        "pass-threshold": "0.5",
        "max-names": "10",
    }
    assert load(changed, {}).fold() == FoldSettings(
        reward_key="score",
        rollout_reward="last",
        late="dead_letter",
        remember_steps=3,
        remember_records=7,
        max_samples=8,
        max_runs=9,
        pass_threshold=0.5,
        max_names=10,
    )


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    path = toml(tmp_path, "max-runs = 3\nmax-names = 3\nremember-steps = 3")
    settings = load(
        {"max-runs": "1"}, {"STREAM_METRICS_MAX_RUNS": "2", "STREAM_METRICS_MAX_NAMES": "2"}, config_file=path
    )
    assert (settings.max_runs, settings.max_names, settings.remember_steps, settings.late) == (1, 2, 3, "correct")


def test_the_file_may_be_named_by_a_variable_and_the_flag_wins(tmp_path: Path) -> None:
    path = toml(tmp_path, "max_runs = 3")
    assert load({}, {"STREAM_METRICS_CONFIG": path}).max_runs == 3
    assert load({}, {"STREAM_METRICS_CONFIG": "missing.toml"}, config_file=path).max_runs == 3


def test_every_setting_can_come_from_each_source(tmp_path: Path) -> None:
    texts = {
        "text": "a.b-c",
        "switch": "true",
        "integer": "77",
        "number": "0.9",
        "table": "client.id=x",
        "list": "stdout",
    }
    by_name = {"idle-timeout": "77", "transaction-timeout": "7", "session-timeout": "77"}
    for definition in DEFINITIONS:
        text = (
            definition.choices[-1] if definition.choices else by_name.get(definition.name, texts.get(definition.kind))
        )
        assert text is not None
        expected = load({definition.name: [text] if definition.kind in ("table", "list") else text}, {})
        assert expected != Settings(), definition.name
        assert load({}, {definition.variable: text}) == expected
        quoted = {"text": repr(text), "choice": repr(text), "table": '{"client.id" = "x"}', "list": f"[{text!r}]"}
        in_file = quoted.get(definition.kind, text)
        assert load({}, {}, config_file=toml(tmp_path, f"{definition.name} = {in_file}")) == expected


def test_sinks_are_one_a_line_of_the_variable_and_a_list_of_the_file(tmp_path: Path) -> None:
    wanted = ("stdout", "jsonl --path 'a, b'")
    assert load({}, {"STREAM_METRICS_SINK": "stdout\n\njsonl --path 'a, b'\n"}).sink == wanted
    assert load({}, {}, config_file=toml(tmp_path, 'sink = ["stdout", "jsonl --path \'a, b\'"]')).sink == wanted
    assert problems({}, {}, toml(tmp_path, "sink = [1]"))
    settings = load({"sink": ["mlflow --tracking-uri http://me:secret@host"]}, {})
    assert "secret" not in repr(settings)


def test_everything_wrong_is_said_at_once_with_its_source(tmp_path: Path) -> None:
    path = toml(tmp_path, 'late = "never"\nclsoe-grace = 5\nhttp-port = "web"\ncreate-topics = 1')
    assert problems(
        {"max-runs": "129", "input-topic": "a b"},
        {"STREAM_METRICS_CLOSE_GRACE": "-1", "STREAM_METRICS_GROUP": "g", "STREAM_METRICS_BOOTSTRAP_SERVERS": "a:b"},
        path,
    ) == [
        "STREAM_METRICS_GROUP: is no variable of ours; did you mean STREAM_METRICS_GROUP_ID?",
        f"clsoe-grace in {path}: is no setting; did you mean close-grace?",
        "STREAM_METRICS_BOOTSTRAP_SERVERS: 'a:b' must be HOST:PORT, several separated by commas",
        "--input-topic: 'a b' must be a topic name: up to 249 of a-z A-Z 0-9 . _ -",
        f"create-topics in {path}: 1 must be true or false",
        f"late in {path}: 'never' must be one of correct, dead_letter",
        "STREAM_METRICS_CLOSE_GRACE: '-1' must be a number of seconds from 0 to 2592000",
        "--max-runs: '129' must be a whole number from 1 to 128",
        f"http-port in {path}: 'web' must be a whole number from 0 to 65535",
    ]


def test_the_message_counts_and_lists() -> None:
    with pytest.raises(SettingsError, match=r"^1 setting is wrong:\n  --max-runs: 'x' must be .*$"):
        load({"max-runs": "x"}, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max-runs", "0"),
        ("max-runs", "1.5"),
        ("max-runs", ""),
        ("max-runs", "9" * 5000),
        ("max-samples", "1e6"),
        ("pass-threshold", "nan"),
        ("pass-threshold", "inf"),
        ("pass-threshold", "high"),
        ("dead-letter-limit", "1.1"),
        ("idle-timeout", "0"),
        ("commit-interval", "0"),
        ("http-port", "65536"),
        ("input-topic", ""),
        ("input-topic", "."),
        ("input-topic", ".."),
        ("input-topic", "^regex.*"),
        ("input-topic", "x" * 250),
        ("instance-id", "a b"),
        ("group-id", ""),
        ("rollout-reward", "median"),
        ("bootstrap-servers", ""),
        ("bootstrap-servers", "a:9092,,b:9092"),
        ("bootstrap-servers", "a:0"),
        ("bootstrap-servers", "a:70000"),
        ("bootstrap-servers", "a b:1"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(name: str, value: str) -> None:
    assert len(problems({name: value})) == 1


@pytest.mark.parametrize("value", ["max-runs = true", "max-runs = 1.0", "max-runs = [1]", "max-runs = " + "9" * 400])
def test_a_file_s_value_of_the_wrong_type_is_refused(tmp_path: Path, value: str) -> None:
    assert len(problems(config_file=toml(tmp_path, value))) == 1


@pytest.mark.parametrize("number", ["1" + "0" * 400, "nan", "inf"])
def test_a_file_s_number_past_all_bounds_is_refused(tmp_path: Path, number: str) -> None:
    assert len(problems(config_file=toml(tmp_path, f"pass-threshold = {number}"))) == 1


@pytest.mark.parametrize(
    "servers", ["kafka", "kafka:9092", "a:1, b:2", "10.0.0.1:9092", "[::1]:9092", "SASL_SSL://a.b-c:9093"]
)
def test_brokers_come_in_several_forms(servers: str) -> None:
    assert load({"bootstrap-servers": servers}, {}).bootstrap_servers == servers


def test_an_empty_variable_is_not_set() -> None:
    assert load(
        {}, {"STREAM_METRICS_MAX_RUNS": "", "STREAM_METRICS_CONFIG": "", "STREAM_METRICS_KAFKA_CONFIG": " "}
    ) == (Settings())


def test_an_empty_flag_takes_an_optional_setting_back() -> None:
    assert load({"reward-key": ""}, {"STREAM_METRICS_REWARD_KEY": "score"}).reward_key is None


def test_a_switch_can_be_taken_back_by_its_flag() -> None:
    assert load({"create-topics": False}, {"STREAM_METRICS_CREATE_TOPICS": "yes"}).create_topics is False


def test_what_kubernetes_makes_of_a_service_of_our_name_is_not_ours() -> None:
    environment = {
        "STREAM_METRICS_SERVICE_HOST": "10.0.0.7",
        "STREAM_METRICS_SERVICE_PORT": "8080",
        "STREAM_METRICS_SERVICE_PORT_HTTP": "8080",
        "STREAM_METRICS_PORT": "tcp://10.0.0.7:8080",
        "STREAM_METRICS_PORT_8080_TCP": "tcp://10.0.0.7:8080",
        "STREAM_METRICS_PORT_8080_TCP_PROTO": "tcp",
        "STREAM_METRICS_PORT_8080_TCP_PORT": "8080",
        "STREAM_METRICS_PORT_8080_TCP_ADDR": "10.0.0.7",
        "STREAM_METRICS_HTTP_SERVICE_HOST": "10.0.0.7",
        "STREAM_METRICS_HTTP_PORT": "tcp://10.0.0.7:8080",
    }
    assert load({}, environment) == Settings()
    assert load({}, {"STREAM_METRICS_HTTP_PORT": "8080"}).http_port == 8080
    assert len(problems(environment={"STREAM_METRICS_HTP_PORT": "8080"})) == 1


def test_the_topics_must_differ() -> None:
    (problem,) = problems({"output-topic": "x"}, {"STREAM_METRICS_DEAD_LETTER_TOPIC": "x"})
    assert problem == (
        "output-topic (--output-topic), dead-letter-topic (STREAM_METRICS_DEAD_LETTER_TOPIC): "
        "'x' is given for each, but they must be different topics"
    )


def test_a_transaction_must_time_out_before_the_session() -> None:
    (problem,) = problems({"session-timeout": "10"})
    assert problem == (
        "transaction-timeout (default), session-timeout (--session-timeout): "
        "transaction-timeout 10 must be below session-timeout 10"
    )


def test_a_static_member_has_short_timeouts_that_fit_each_other() -> None:
    settings = load({"instance-id": "metrics-0"}, {})
    assert (settings.session_timeout_seconds, settings.transaction_timeout_seconds) == (10, 8)
    assert load({"instance-id": "metrics-0", "session-timeout": "45"}, {}).session_timeout_seconds == 45
    assert load({}, {}).session_timeout_seconds == 45


def test_client_properties_are_merged_over_the_sources(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        '[kafka-config]\nsecurity.protocol = "SASL_SSL"\n"ssl.ca.location" = "ca.pem"\n'
        '"socket.keepalive.enable" = true\n"fetch.wait.max.ms" = 10',
    )
    settings = load(
        {"kafka-config": ["ssl.ca.location=other.pem"]},
        {"STREAM_METRICS_KAFKA_CONFIG": "sasl.username=u,sasl.password=p=="},
        config_file=path,
    )
    assert settings.kafka_config == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "other.pem",
        "socket.keepalive.enable": "true",
        "fetch.wait.max.ms": "10",
        "sasl.username": "u",
        "sasl.password": "p==",
    }
    assert settings.client_config()["bootstrap.servers"] == "localhost:9092"


def test_client_properties_in_a_variable_may_stand_one_a_line() -> None:
    settings = load({}, {"STREAM_METRICS_KAFKA_CONFIG": "sasl.password=a,b=c\n\nclient.id = x\n"})
    assert settings.kafka_config == {"sasl.password": "a,b=c", "client.id": "x"}


@pytest.mark.parametrize(
    "name",
    [
        "enable.auto.commit",
        "isolation.level",
        "transactional.id",
        "group.id",
        "group.instance.id",
        "auto.offset.reset",
        "enable.idempotence",
        "enable.auto.offset.store",
        "partition.assignment.strategy",
        "group.protocol",
    ],
)
def test_client_properties_that_exactness_depends_on_are_refused(name: str) -> None:
    (problem,) = problems({"kafka-config": [f"{name}=x"]})
    assert problem.startswith(f"--kafka-config: may not set {name}: ")


def test_client_properties_of_a_wrong_form_are_refused_without_showing_them(tmp_path: Path) -> None:
    path = toml(tmp_path, "kafka-config = 3")
    found = problems({"kafka-config": ["hunter2"]}, {"STREAM_METRICS_KAFKA_CONFIG": "sasl.password=x,hunter2"}, path)
    assert len(found) == 3
    assert "hunter2" not in str(found)
    path = toml(tmp_path, "[kafka-config]\na.b = [1]")
    assert problems(config_file=path) == [f"kafka-config in {path}: a.b must be a text, a number, true or false"]


def test_secrets_are_not_shown() -> None:
    settings = load({"kafka-config": ["sasl.password=hunter2", "ssl.key.pem=hunter2", "client.id=me"]}, {})
    assert "hunter2" not in repr(settings)
    assert settings.shown()["kafka-config"] == {"sasl.password": "***", "ssl.key.pem": "***", "client.id": "me"}


@pytest.mark.parametrize("text", ["max-runs = ", "\xff\xfe", "max-runs = 1\nmax-runs = 2"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.toml"
    path.write_bytes(text.encode("latin-1"))
    (problem,) = problems(config_file=str(path))
    assert problem.startswith(f"--config: '{path}' is no TOML: ")


def test_a_file_that_is_not_there_is_refused_whoever_named_it() -> None:
    assert problems(config_file="missing.toml") == ["--config: 'missing.toml' can't be read: No such file or directory"]
    assert problems(environment={"STREAM_METRICS_CONFIG": "missing.toml"}) == [
        "STREAM_METRICS_CONFIG: 'missing.toml' can't be read: No such file or directory"
    ]


def test_a_key_given_with_hyphen_and_underscore_is_given_twice(tmp_path: Path) -> None:
    path = toml(tmp_path, "max-runs = 1\nmax_runs = 2")
    assert problems(config_file=path) == [f"max_runs in {path}: is given twice"]


def test_names_are_one_thing_in_three_forms() -> None:
    assert len({definition.name for definition in DEFINITIONS}) == len(Settings.__struct_fields__)
    for definition in DEFINITIONS:
        assert definition.flag == f"--{definition.name}"
        assert definition.variable == PREFIX + definition.name.upper().replace("-", "_")
        assert definition.about.help.endswith(".")


def test_the_flags_of_run_and_replay_are_those_of_the_contract() -> None:
    run = {definition.name for definition in for_command("run")}
    replay = {definition.name for definition in for_command("replay")}
    assert {"late", "reward-key", "rollout-reward", "remember-steps", "max-samples", "max-runs", "log-format"} <= replay
    assert replay <= run
    assert {definition.name for definition in DEFINITIONS} == run


def test_variables_of_the_trainers_hooks_are_no_mistake_of_a_command():
    environment = {"STREAM_METRICS_RUN_ID": "r", "STREAM_METRICS_ATTEMPT": "3", "STREAM_METRICS_SPOOL_DIRECTORY": "/x"}
    assert load({}, environment) == load({}, {})


def test_every_variable_that_a_hook_reads_is_known_to_the_commands():
    from stream_metrics.producers.environment import PREFIX, VARIABLES

    load({}, {PREFIX + name: "1" for name in VARIABLES if name not in ("BOOTSTRAP_SERVERS", "KAFKA_CONFIG")})
