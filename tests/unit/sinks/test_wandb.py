"""What is special of W&B, with its own library: offline by its files, online to a server that answers as its own does.

Skipped where the library isn't installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_metrics.events import encode
from stream_metrics.sinks import wandb
from stream_metrics.sinks.base import Delivery, SinkOutageError, SinkRefusedError
from stream_metrics.sinks.wandb import WandbSink
from stream_metrics.sinks.wandb_files import RunFile, records
from support.results import step_metrics
from support.wandb_server import KEY, StoredRun, WandbServer, offline_runs, running_server

pytestmark = pytest.mark.filterwarnings("ignore")  # what the library warns of in itself is its own


@pytest.fixture(autouse=True)
def library() -> None:
    pytest.importorskip("wandb", reason="the sink wandb's library isn't installed")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[WandbServer]:
    with running_server() as made:
        monkeypatch.setenv("WANDB_BASE_URL", made.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("HOME", str(tmp_path))  # no key of somebody's home
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        yield made


@pytest.fixture
def sinks() -> Iterator[list[WandbSink]]:
    opened: list[WandbSink] = []
    yield opened
    for sink in opened:
        sink.close()


@pytest.fixture
def online(server: WandbServer, sinks: list[WandbSink]) -> WandbSink:
    return begun(sinks, "online")


def begun(sinks: list[WandbSink], mode: str, directory: Path | None = None) -> WandbSink:
    sink = WandbSink(mode=mode, directory=directory and str(directory))
    sinks.append(sink)
    sink.setup()
    return sink


def delivery(step: int, offset: int, reward: float = 0.5, **fields: Any) -> Delivery:
    metrics = {"rollout/episode_raw_reward": reward, "rollout/step": step}
    result = step_metrics(step, **({"metrics": metrics} | fields))
    return Delivery(result, encode(result), 0, offset, 1_700_000_000_000)


def give(sink: WandbSink, *batch: Delivery) -> None:
    sink.write(batch)
    sink.flush()


def shown(server: WandbServer, key: str = "rollout/episode_raw_reward") -> list[tuple[int, float]]:
    return [(row["_step"], row[key]) for run in server.runs.values() for row in run.rows if key in row]


def test_the_step_is_the_x_axis_of_each_scope_and_of_its_corrections(online: WandbSink, server: WandbServer) -> None:
    give(online, delivery(7, 3), delivery(7, 4, correction=True), delivery(8, 5))
    online.close()  # an open run tells its x-axes some seconds later
    run = server.named("run")
    assert (run.group, run.job_type) == ("run", "stream_metrics")
    assert run.x_axes == {"rollout/*": "rollout/step", "corrected/rollout/*": "corrected/rollout/step"}
    assert [(row.get("rollout/step"), row.get("corrected/rollout/step")) for row in run.rows] == [
        (7, None),
        (None, 7),
        (8, None),
    ]


def test_a_correction_is_the_point_where_wandb_has_none_and_goes_beside_it_where_it_has(
    server: WandbServer, sinks: list[WandbSink]
) -> None:
    """The consumer recalls nothing: compaction took what the corrections replace."""
    give(begun(sinks, "online"), delivery(1, 0), delivery(2, 4, 0.25, correction=True))
    sinks.pop().close()
    give(begun(sinks, "online"), delivery(1, 6, 0.125, correction=True), delivery(3, 7, correction=True))
    assert shown(server) == [(0, 0.5), (4, 0.25), (7, 0.5)]
    assert shown(server, "corrected/rollout/episode_raw_reward") == [(6, 0.125)]


def test_names_that_wandb_reads_otherwise_are_changed_and_stay_apart(online: WandbSink, server: WandbServer) -> None:
    metrics = {"a.b*/step": 1, "a.b*/x.y": 1.0, "a.b*/x_y": 2.0}
    give(online, delivery(1, 0, scope="a.b*", metrics=metrics))
    online.close()
    (row,) = server.named("run").rows
    scope = wandb._name("a.b*")
    assert row[f"{scope}/{wandb._name('x.y')}"] == 1.0
    assert row[f"{scope}/x_y"] == 2.0
    assert server.named("run").x_axes == {f"{scope}/*": f"{scope}/step"}


def test_a_wrong_key_is_refused_with_what_to_set(
    server: WandbServer, sinks: list[WandbSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("x" * 40, "short", None):
        if key is None:
            monkeypatch.delenv("WANDB_API_KEY")
        else:
            monkeypatch.setenv("WANDB_API_KEY", key)
        with pytest.raises(SinkRefusedError, match="set WANDB_API_KEY"):
            begun(sinks, "online")


def test_a_key_that_is_withdrawn_later_is_refused_too(
    online: WandbSink, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(online, delivery(1, 0))
    server.status = 401
    with pytest.raises(SinkRefusedError, match="set WANDB_API_KEY"):
        give(online, delivery(2, 1))


def test_a_mode_that_would_lose_results_is_refused(sinks: list[WandbSink], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    sinks.append(WandbSink())
    with pytest.raises(SinkRefusedError, match="online or offline, not 'disabled'"):
        sinks[0].setup()


def test_a_directory_that_cannot_be_written_to_is_refused(
    sinks: list[WandbSink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkRefusedError, match="can't be made"):
        begun(sinks, "offline", tmp_path / "file" / "folder")
    monkeypatch.setattr(wandb.os, "access", lambda *_: False)  # tests may run as root, who may write anywhere
    with pytest.raises(SinkRefusedError, match="can't be written to"):
        begun(sinks, "offline", tmp_path)


def test_a_library_that_is_too_old_is_refused(sinks: list[WandbSink], monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb as library

    monkeypatch.setattr(library, "__version__", "0.19.11")
    sinks.append(WandbSink(mode="offline"))
    with pytest.raises(SinkRefusedError, match=r"0\.31 is needed"):
        sinks[0].setup()


def test_a_server_that_is_away_at_the_start_is_an_outage(server: WandbServer, sinks: list[WandbSink]) -> None:
    server.status = 500
    sink = WandbSink(mode="online")
    sinks.append(sink)
    with pytest.raises(SinkOutageError):
        sink.setup()
    server.status = 200
    sink.setup()
    give(sink, delivery(1, 0))
    assert shown(server) == [(0, 0.5)]


@pytest.mark.parametrize("status", [500, 404])
def test_rows_that_wandb_did_not_take_come_again_once(
    online: WandbSink, server: WandbServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """At 500 the library tries on; at 404 it gives up, and says so nowhere."""
    give(online, delivery(1, 0))
    batch = [delivery(2, 1), delivery(3, 2)]
    with monkeypatch.context() as patience:
        patience.setattr(wandb, "_SETTINGS", {**wandb._SETTINGS, "finish_timeout": 1.0})
        online.begin()
        give(online)  # what was open had the old patience
        server.rows_status = status
        for _ in range(2):
            with pytest.raises(SinkOutageError):
                give(online, *batch)
    server.rows_status = 200
    give(online, *batch)
    give(online, delivery(4, 3))
    assert shown(server) == [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5)]


_LOSES_ITS_HELPER = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path}
from unit_test_wandb import SinkOutageError, WandbSink, delivery, give
sink = WandbSink(mode="online")
sink.setup()
give(sink, delivery(1, 0))
(helper,) = Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split()
os.kill(int(helper), signal.SIGKILL)
try:
    give(sink, delivery(2, 1))
except SinkOutageError:
    give(sink, delivery(2, 1))
    print("went on")
"""


def test_a_helper_process_of_the_library_that_dies_is_an_outage(server: WandbServer, tmp_path: Path) -> None:
    # In a process of its own, since the library never waits for its dead child.
    done = subprocess.run(own_script(_LOSES_ITS_HELPER, tmp_path), capture_output=True, timeout=120, check=False)
    assert done.stdout == b"went on\n", done.stderr.decode()
    assert shown(server) == [(0, 0.5), (1, 0.5)]


def own_script(script: str, folder: Path) -> list[str]:
    """Returns the command of a script that may import this very module as `unit_test_wandb`."""
    (folder / "unit_test_wandb.py").symlink_to(Path(__file__).resolve())
    path = [str(folder), str(Path(__file__).parents[2])]
    return [sys.executable, "-c", script.format(path=path), str(folder)]


def test_a_partition_that_was_with_another_process_meanwhile_goes_on_behind_its_rows(
    online: WandbSink, server: WandbServer
) -> None:
    give(online, delivery(1, 0))
    (run,) = server.runs.values()
    run.lines.append('{"_step": 1, "rollout/step": 2, "rollout/episode_raw_reward": 0.5}')
    online.begin()
    give(online, delivery(2, 1), delivery(3, 2))
    assert shown(server) == [(0, 0.5), (1, 0.5), (2, 0.5)]


def test_joining_the_trainers_run_adds_rows_to_it_each_once_and_defines_nothing(
    server: WandbServer, sinks: list[WandbSink]
) -> None:
    trainers = server.runs["abc"] = StoredRun("theirs", lines=['{"rollout/step": 1, "rollout/loss": 2.0}'])
    trainers.is_shared = True
    batch = [delivery(1, 3), delivery(1, 5, 0.25, correction=True), delivery(2, 6)]
    for _ in range(2):  # the second life has committed nothing
        sinks.append(WandbSink(mode="online", join="run=abc"))
        sinks[-1].setup()
        give(sinks[-1], *batch)
        give(sinks[-1], delivery(1, 3, run_id="other"))
        sinks[-1].close()
    rows = [{key: value for key, value in row.items() if not key.startswith("_")} for row in trainers.rows]
    assert rows[0] == {"rollout/step": 1, "rollout/loss": 2.0}
    assert rows[1:] == [
        {"rollout/episode_raw_reward": 0.5, "rollout/step": 1, "rollout/result_offset": 3},
        {
            "rollout/corrected/episode_raw_reward": 0.25,
            "rollout/corrected/step": 1,
            "rollout/step": 1,
            "rollout/corrected/result_offset": 5,
        },
        {"rollout/episode_raw_reward": 0.5, "rollout/step": 2, "rollout/result_offset": 6},
    ]
    assert (trainers.name, trainers.config, trainers.is_finished) == ("theirs", {}, False)
    assert [row["rollout/step"] for row in server.named("other").rows] == [1]


def test_rows_that_the_trainers_run_did_not_take_come_again(server: WandbServer, sinks: list[WandbSink]) -> None:
    server.runs["abc"] = StoredRun(is_shared=True)
    sink = WandbSink(mode="online", join="run=abc")
    sinks.append(sink)
    sink.setup()
    server.rows_status = 404
    with pytest.raises(SinkOutageError, match="didn't take"):
        give(sink, delivery(1, 0))
    server.rows_status = 200
    give(sink, delivery(1, 0))
    assert [row["rollout/result_offset"] for row in server.runs["abc"].rows] == [0]


@pytest.mark.parametrize("join", ["abc", "=abc", "run="])
def test_a_run_to_join_needs_both_names(sinks: list[WandbSink], join: str) -> None:
    sinks.append(WandbSink(mode="online", join=join))
    with pytest.raises(SinkRefusedError, match="RUN=ID"):
        sinks[0].setup()


def test_more_runs_than_may_be_open_lose_nothing(
    online: WandbSink, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb, "_MAX_OPEN_RUNS", 2)
    names = ["a", "b", "c", "a", "c"]
    give(online, *(delivery(place, place, run_id=name) for place, name in enumerate(names)))
    found = {run.name: [row["rollout/step"] for row in run.rows] for run in server.runs.values()}
    assert found == {"a": [0, 3], "b": [1], "c": [2, 4]}


def test_online_nothing_of_a_run_stays_on_the_disk(online: WandbSink, server: WandbServer, tmp_path: Path) -> None:
    for step in range(3):
        give(online, delivery(step, step))
    assert len(list(tmp_path.rglob("run-*.wandb"))) == 1  # of the run that is open
    online.close()
    assert list(tmp_path.rglob("run-*.wandb")) == []
    assert server.named("run").is_finished


def test_two_lives_offline_are_one_run_when_the_library_syncs_them(
    server: WandbServer, sinks: list[WandbSink], tmp_path: Path
) -> None:
    for life in range(2):
        sink = begun(sinks, "offline", tmp_path / "kept")
        give(sink, *(delivery(step, step) for step in range(2 * life + 2)))
        sink.close()
    for folder in sorted((tmp_path / "kept" / "wandb").glob("offline-run-*")):
        command = [sys.executable, "-m", "wandb", "sync", str(folder)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr.decode()
    assert shown(server) == [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5)]
    assert server.named("run").x_axes == {"rollout/*": "rollout/step"}


_FEEDS_UNTIL_KILLED = """
import sys
sys.path[:0] = {path}
from unit_test_wandb import WandbSink, delivery
sink = WandbSink(mode="offline", directory=sys.argv[1])
sink.setup()
for step in range(1000000):
    sink.write([delivery(step, step)])
    sink.flush()
    print(step, flush=True)
"""


def test_what_was_flushed_offline_outlives_a_kill_and_is_not_doubled(sinks: list[WandbSink], tmp_path: Path) -> None:
    command = own_script(_FEEDS_UNTIL_KILLED, tmp_path)
    flushed: list[int] = []
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            flushed += [int(process.stdout.readline()) for _ in range(20)]
            process.kill()
    (run,) = offline_runs(tmp_path).values()
    steps = [row["rollout/step"] for row in run.rows]
    assert set(flushed) <= set(steps)
    assert len(steps) == len(set(steps))


def test_a_file_that_ends_in_half_a_record_gives_what_comes_before_and_goes_on_when_it_is_whole(
    sinks: list[WandbSink], tmp_path: Path
) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    sink = begun(sinks, "offline", tmp_path)
    # Rows so wide that some lie over the end of a block of 32 KiB.
    wide = {f"rollout/m{name}": 0.123456789 for name in range(400)}
    give(sink, *(delivery(step, step, metrics=wide) for step in range(20)))
    sink.close()
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    text = path.read_bytes()
    assert len(text) > 3 * 32_768
    growing = tmp_path / "growing"
    file = RunFile(growing, Record)
    steps: list[int] = []
    for end in [*range(0, len(text), 997), len(text)]:
        growing.write_bytes(text[:end])
        steps += [row.step for row in file.rows()]
    assert steps == list(range(20))
    broken = bytearray(text)
    broken[len(text) // 2] ^= 1
    assert 0 < len(list(records(bytes(broken)))) < len(list(records(text)))


def test_a_disk_that_takes_nothing_offline_is_an_outage(
    sinks: list[WandbSink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = begun(sinks, "offline", tmp_path)
    give(sink, delivery(1, 0))
    monkeypatch.setattr(wandb, "_FILE_SECONDS", 0.2)
    monkeypatch.setattr(RunFile, "rows", lambda _: iter(()))
    with pytest.raises(SinkOutageError, match="disk"):
        give(sink, delivery(2, 1))
    monkeypatch.undo()
    give(sink, delivery(2, 1))
    sink.close()
    (run,) = offline_runs(tmp_path).values()
    assert [row["rollout/step"] for row in run.rows] == [1, 2]
