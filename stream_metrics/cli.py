"""The command line: reads the arguments, makes the settings, calls the command. No logic.

A command's module is imported when it is called, so that help and `schema` need no Kafka client.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final

from stream_metrics import __version__
from stream_metrics.config import (
    CONFIG_VARIABLE,
    DEFINITIONS,
    Definition,
    Problem,
    Settings,
    SettingsError,
    for_command,
    load,
    suggest,
)
from stream_metrics.exit_codes import MEANINGS, ExitCode
from stream_metrics.sinks.registry import SINKS, Flag

PROGRAM: Final = "stream-metrics"

_ABOUT: Final = """\
Exact per-rollout step metrics of RL training, from a Kafka topic of training samples.

Producers write one event per training sample, and a close marker when a step is over; `run` publishes each step's
metrics exactly once. Start with `stream-metrics demo`."""

_SOURCES: Final = f"""\
A setting comes from the first of: its flag, its variable (in brackets), its key in the TOML file that --config or
{CONFIG_VARIABLE} names (close-grace = 30), its default. All that is wrong is said at once."""

_SUMMARIES: Final = {
    "run": "fold the input topic and publish results, exactly once",
    "replay": "fold a file of events and print the results, without a broker",
    "explain": "show where the numbers of one step come from",
    "dump": "write the input topic to a file that `replay` reads",
    "produce": "send a file of events to the input topic",
    "follow": "send the step files that a trainer writes, as it writes them",
    "sink": "give the results to a file, Prometheus, TensorBoard, MLflow or W&B",
    "watch": "show in a terminal what a sidecar's live page shows",
    "schema": "print the JSON Schema of events and results",
    "demo": "watch a simulated run with an embedded broker",
}

_DESCRIPTIONS: Final = {
    "run": """\
Consumes the input topic and publishes each closed step's metrics to the output topic, together with the offsets in one
transaction. Keeps no files: a replacement rebuilds the open steps from the log. Replicas with the same --group-id share
the partitions.""",
    "replay": """\
Folds a log in JSON lines, written by `dump` or with one bare event a line, by the same rules as `run`, and prints one
result a line. Steps still open at the end are named on standard error.""",
    "explain": """\
Folds a log as `replay` does and shows one step: its rollouts with their samples and rewards, the groups without spread,
and what is missing or odd. For the day somebody doubts the curve.""",
    "dump": """\
Writes the committed records of the input topic, from the start of its log to the end as it stands now, as JSON lines:
one partition after another, each in the order of its offsets. Joins no group and commits nothing.""",
    "produce": """\
Sends JSON lines to the input topic. An event is checked and keyed by its run_id, so that a run stays on one partition.
A line of `dump` is sent unchecked with its own key, value and headers (without a key, to its own partition) and a new
timestamp. Lines that are no event are named and left out, and the exit code is 6.""",
    "follow": """\
Sends the step files of a trainer that needs no code for it (verl's rollout_data_dir, prime-rl's output directory) to
the input topic, and closes each step. Remembers in a file what is sent: it may be stopped and started at any time.""",
    "sink": """\
Gives the results of the output topic to an outside system: each at least once, and shown once, whatever crashes or
comes twice. A consumer group remembers what was taken. `stream-metrics sink NAME --help` shows the flags of a tool.""",
    "watch": """\
Shows runs, open and closed steps and dead letters of a running sidecar, live, from its --http-port; needs no broker.
Without a terminal it writes a line for each step that closes. It waits for a sidecar that is away, and goes on.""",
    "schema": """\
Prints the JSON Schema of the events `sample`, `samples` and `close` and of the result `step_metrics`.""",
    "demo": "",
}

_EXAMPLES: Final = {
    "": (
        "stream-metrics demo",
        "stream-metrics run --bootstrap-servers kafka:9092 --create-topics",
        "stream-metrics dump --output log.jsonl && stream-metrics replay log.jsonl",
    ),
    "run": (
        "stream-metrics run --bootstrap-servers kafka:9092 --create-topics --http-port 8080",
        "stream-metrics run --config metrics.toml --instance-id metrics-0",
        "stream-metrics run --kafka-config security.protocol=SSL --kafka-config ssl.ca.location=ca.pem",
        "stream-metrics run --sink wandb --sink 'tensorboard --directory logs'",
    ),
    "replay": (
        "stream-metrics replay log.jsonl --rollout-reward last",
        "stream-metrics dump | stream-metrics replay - --dead-letters rejected.jsonl",
    ),
    "explain": (
        "stream-metrics explain 7 log.jsonl --run run-7",
        "stream-metrics dump | stream-metrics explain 7 - --json | jq .rollouts[0]",
    ),
    "dump": (
        "stream-metrics dump --output log.jsonl",
        "stream-metrics dump --partition 0 | jq .value.step",
    ),
    "produce": (
        "stream-metrics produce events.jsonl",
        'echo \'{"type":"close","run_id":"r","step":3}\' | stream-metrics produce -',
    ),
    "follow": ("stream-metrics follow /data/rollouts --layout verl --run-id run-7",),
    "sink": (
        "stream-metrics sink jsonl --path results.jsonl --bootstrap-servers kafka:9092",
        "stream-metrics sink stdout --once --all | jq .metrics",
        "stream-metrics sink prometheus --port 8081",
    ),
    "watch": (
        "stream-metrics watch",
        "stream-metrics watch http://metrics-0:8080 --run run-7",
        "ssh trainer stream-metrics watch | tee results.txt",
    ),
    "schema": ("stream-metrics schema > events.schema.json",),
}

_USAGES: Final = {
    "run": "stream-metrics run [SETTING...]",
    "replay": "stream-metrics replay [--dead-letters FILE] [SETTING...] FILE",
    "explain": "stream-metrics explain STEP FILE [--run NAME] [--scope NAME] [--limit N] [--json] [SETTING...]",
    "dump": "stream-metrics dump [--output FILE] [--partition N] [SETTING...]",
    "produce": "stream-metrics produce [SETTING...] FILE",
    "follow": "stream-metrics follow DIRECTORY --layout LAYOUT --run-id NAME [SETTING...]",
    "sink": "stream-metrics sink NAME [FLAG...] [SETTING...]",
    "watch": "stream-metrics watch [URL] [--run NAME] [--scope NAME] [--lines]",
}

_WITH_SETTINGS: Final = ("run", "replay", "explain", "dump", "produce", "follow")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code of the command that the arguments name.

    Args:
        arguments: What follows the program's name; by default the process's own.

    Raises:
        SystemExit: For help, the version, and usage that argparse refuses (code 2).
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:1] == ["demo"]:  # reads its own arguments
            return int(_command("demo").main(arguments[1:]))
        return _call(arguments)
    except SettingsError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return ExitCode.WRONG_SETTINGS
    except BrokenPipeError:
        # Who read standard output has gone; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.INTERNAL_ERROR


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=_filled(_ABOUT),
        epilog=_epilog("", with_settings=False),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    made = {
        name: commands.add_parser(
            name,
            help=summary,
            usage=_USAGES.get(name),
            description=_filled(_DESCRIPTIONS[name]),
            epilog=_epilog(name, with_settings=name in _WITH_SETTINGS),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for name, summary in _SUMMARIES.items()
    }
    made["replay"].add_argument("path", metavar="FILE", help="the log in JSON lines; - for standard input")
    made["replay"].add_argument(
        "--dead-letters", metavar="FILE", help="write the rejected lines here, with reason and line number"
    )
    _add_explain(made["explain"])
    made["dump"].add_argument("--output", metavar="FILE", help="write to this file, not to standard output (-)")
    made["dump"].add_argument("--partition", metavar="N", type=int, help="only this partition")
    made["produce"].add_argument("path", metavar="FILE", help="events in JSON lines; - for standard input")
    _add_follow(made["follow"])
    _add_sinks(made["sink"])
    _add_watch(made["watch"])
    for name in _WITH_SETTINGS:
        _add_settings(made[name], name)
    return parser


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", metavar="STEP", type=int, help="the step")
    parser.add_argument("path", metavar="FILE", help="the log in JSON lines; - for standard input")
    parser.add_argument("--run", metavar="NAME", help="the run, where the log has several")
    parser.add_argument("--scope", metavar="NAME", help="the scope, where the run has several")
    parser.add_argument("--limit", metavar="N", type=int, default=20, help="rollouts shown (default: 20)")
    parser.add_argument("--json", action="store_true", help="everything, as one JSON object")


def _add_follow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIRECTORY", help="what the trainer writes to")
    parser.add_argument("--layout", required=True, choices=("verl", "prime-rl", "prime-rl-steps"), help="whose files")
    parser.add_argument("--run-id", required=True, metavar="NAME", help="the run; the same after a restart")
    parser.add_argument("--scope", metavar="NAME", help="prefix of the metrics' keys (default: rollout)")
    parser.add_argument("--attempt", metavar="N", type=int, help="the trainer's try (default: remembered, or the time)")
    parser.add_argument("--state", metavar="FILE", help="what remembers what is sent (default: a file in DIRECTORY)")
    parser.add_argument("--settle-seconds", metavar="S", type=float, default=5.0, help="rest that makes a file whole")
    parser.add_argument("--once", action="store_true", help="send what is there, and end")


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        default="http://127.0.0.1:8080",
        help="the sidecar's --http-host and --http-port (default: %(default)s)",
    )
    parser.add_argument(
        "--run", metavar="NAME", help="the run (default: the one with the newest result; as lines, all)"
    )
    parser.add_argument("--scope", metavar="NAME", help="its scope (default: rollout)")
    parser.add_argument("--lines", action="store_true", help="write lines to a terminal too")


def _add_sinks(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="sink", required=True, metavar="NAME", title="sinks")
    for name, kind in SINKS.items():
        made = names.add_parser(
            name,
            help=kind.summary,
            usage=f"stream-metrics sink {name} [FLAG...] [SETTING...]",
            description=f"{kind.summary[0].upper()}{kind.summary[1:]}.",
            epilog=_epilog("sink", with_settings=True),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        own = made.add_argument_group(f"flags of {name}")
        for flag in kind.flags:
            _add_sink_flag(own, flag)
        made.add_argument("--once", action="store_true", help="take what is there, and end")
        made.add_argument("--all", action="store_true", help="take what was taken before too, and commit nothing")
        made.add_argument(
            "--group", metavar="NAME", help=f"consumer group of this sink (default: stream-metrics-sink-{name})"
        )
        made.add_argument("--until-stdin-ends", action="store_true", help=argparse.SUPPRESS)  # how `run` starts one
        _add_settings(made, "sink")


def _add_sink_flag(group: argparse._ArgumentGroup, flag: Flag) -> None:
    shown = "" if flag.default is None else f" (default: {flag.default})"
    kind = int if isinstance(flag.default, int) else str
    group.add_argument(
        f"--{flag.name.replace('_', '-')}",
        dest=f"of_sink_{flag.name}",
        metavar=flag.metavar,
        type=kind,
        default=flag.default,
        required=flag.is_needed,
        help=f"{flag.help}{shown}",
    )


def _call(arguments: list[str]) -> int:
    given, unknown = make_parser().parse_known_args(arguments)
    if given.command == "schema":
        if unknown:
            raise SettingsError(_unknown("schema", unknown))
        return int(_command("schema").main())
    if given.command == "watch":
        if unknown:
            raise SettingsError(_unknown("watch", unknown))
        how_shown = {"run": given.run, "scope": given.scope, "is_lines": given.lines}
        return int(_command("watch").main(given.url, **how_shown))
    settings = _settings(given, unknown)
    command = _command(given.command)
    if given.command == "replay":
        return int(command.main(settings, path=given.path, dead_letters=given.dead_letters))
    if given.command == "explain":
        return int(
            command.main(
                settings,
                given.path,
                given.step,
                run_id=given.run,
                scope=given.scope,
                limit=given.limit,
                is_json=given.json,
            )
        )
    if given.command == "dump":
        return int(command.main(settings, output=given.output, partition=given.partition))
    if given.command == "produce":
        return int(command.main(settings, path=given.path))
    if given.command == "follow":
        return int(
            command.main(
                settings,
                given.directory,
                given.layout,
                given.run_id,
                scope=given.scope,
                attempt=given.attempt,
                state=given.state,
                settle_seconds=given.settle_seconds,
                is_once=given.once,
            )
        )
    if given.command == "sink":
        options = {flag.name: getattr(given, f"of_sink_{flag.name}") for flag in SINKS[given.sink].flags}
        how = {
            "group": given.group,
            "is_once": given.once,
            "is_all": given.all,
            "is_bound_to_stdin": given.until_stdin_ends,
        }
        return int(command.main(settings, given.sink, options, **how))
    if given.command == "run":
        for text in settings.sink:
            _check_sink(text)
        return int(command.main(settings, config_file=given.config))
    return int(command.main(settings))


def _check_sink(text: str) -> None:
    """A sink of `run` could be started with these flags; else the command ends here, before anything is started."""
    _, unknown = make_parser().parse_known_args(["sink", *shlex.split(text)])
    if unknown:
        raise SettingsError(_unknown("sink", unknown))


def _command(name: str) -> Any:
    return importlib.import_module(f"stream_metrics.commands.{name}")


def _settings(given: argparse.Namespace, unknown: list[str]) -> Settings:
    flags = {definition.name: getattr(given, definition.name) for definition in for_command(given.command)}
    return load(flags, os.environ, config_file=given.config, problems=_unknown(given.command, unknown))


def _unknown(command: str, unknown: list[str]) -> list[Problem]:
    """Returns a problem for each flag that the command doesn't have; what follows one may be its value."""
    own = [definition.flag for definition in for_command(command)]
    others = {definition.flag: definition for definition in DEFINITIONS}
    flags = [argument.partition("=")[0] for argument in unknown if argument.startswith("-") and argument != "-"]
    if not flags:
        return [Problem(argument, "is one argument too many") for argument in unknown]
    return [
        Problem(flag, f"is a flag of {', '.join(sorted(others[flag].about.commands))}, not of {command}")
        if flag in others
        else Problem(flag, f"is no flag of {command}{suggest(flag, own)}")
        for flag in flags
    ]


def _add_settings(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument(
        "--config", metavar="FILE", help=f"TOML file of settings; its keys are the flags' names [{CONFIG_VARIABLE}]"
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for definition in for_command(command):
        title = definition.about.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_setting(groups[title], definition)


def _add_setting(group: argparse._ArgumentGroup, definition: Definition) -> None:
    about = f"{definition.about.help} (default: {definition.default_shown}) [{definition.variable}]".replace("%", "%%")
    if definition.kind == "switch":
        group.add_argument(
            definition.flag, dest=definition.name, help=about, action=argparse.BooleanOptionalAction, default=None
        )
        return
    # Choices and numbers are checked with the rest, so that all that is wrong is said at once.
    metavar = definition.about.metavar or (
        "{" + ",".join(definition.choices) + "}"
        if definition.choices
        else "SECONDS"
        if definition.about.unit == "seconds"
        else "N"
        if definition.kind in ("integer", "number")
        else "NAME"
    )
    action = "append" if definition.kind in ("table", "list") else "store"
    group.add_argument(definition.flag, dest=definition.name, help=about, metavar=metavar, action=action)


def _epilog(command: str, *, with_settings: bool) -> str:
    return "\n\n".join(
        [
            *([_filled(_SOURCES)] if with_settings else []),
            _listed("examples:", _EXAMPLES.get(command, ())),
            _listed("exit codes:", (f"{code.value}  {meaning}" for code, meaning in MEANINGS.items())),
        ]
    )


def _filled(text: str) -> str:
    return "\n\n".join(textwrap.fill(paragraph, 80) for paragraph in text.split("\n\n"))


def _listed(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])
