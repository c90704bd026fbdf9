"""So much of W&B's HTTP API, on loopback, as its library needs to log in, begin, feed, resume and sync runs.

Made from what the library asks for and does with the answers. What W&B's own service does beyond that, it doesn't know.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stream_metrics.sinks.wandb_files import records

KEY = "k" * 40


@dataclass
class StoredRun:
    """A run as the server keeps it.

    Attributes:
        lines: Rows of the history, in JSON.
        is_finished: Whether the library said that it's the end.
        is_shared: Whether several write to it: then rows are put at its end, and definitions stay what they are.
        lives: Times it was begun or resumed.
    """

    name: str = ""
    group: str = ""
    job_type: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    summary: str = "{}"
    is_finished: bool = False
    is_shared: bool = False
    lives: int = 0

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def x_axes(self) -> dict[str, str]:
        """By name or pattern of a metric, the metric that is its x-axis."""
        defined = self.config.get("_wandb", {}).get("value", {}).get("m", [])
        names = [made.get("1") or made.get("2", "") for made in defined]
        return {name: names[made["5"] - 1] for name, made in zip(names, defined, strict=True) if "5" in made}

    @property
    def shown_name(self) -> str:
        """Which run of ours it is, and which attempt where it isn't the first."""
        attempt = self.config["attempt"]["value"]
        return str(self.config["run_id"]["value"]) + (f" attempt {attempt}" if attempt else "")


def offline_runs(directory: Path) -> dict[str, StoredRun]:
    """Returns what lies in the files of offline runs, by id."""
    from wandb.proto.wandb_internal_pb2 import Record

    runs: dict[str, StoredRun] = {}
    for path in sorted((directory / "wandb").glob("offline-run-*/run-*.wandb")):
        run = runs.setdefault(path.stem, StoredRun())
        for text in records(path.read_bytes()):
            made = Record.FromString(text)
            for item in made.run.config.update:
                run.config[item.key] = {"value": json.loads(item.value_json)}
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in made.history.item}
            if row:
                run.lines.append(json.dumps(row))
    return runs


class WandbServer:
    """Answers until it is closed.

    Attributes:
        runs: By id.
        status: What every request is answered with; 200 for as it should be.
        rows_status: The same of requests that bring rows.
        may_answer: While it isn't set, everybody waits for an answer.
        has_been_asked: Set by each request.
        url: Its address.
    """

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.status = 200
        self.rows_status = 200
        self.has_been_asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                owner.has_been_asked.set()
                owner.may_answer.wait()
                status, answer = owner._answer(self.path, self.headers.get("authorization", ""), body)
                text = json.dumps(answer).encode()
                with contextlib.suppress(ConnectionError):  # who asked may have given up
                    self.send_response(status)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)

            def do_GET(self) -> None:
                self.do_POST()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def named(self, name: str) -> StoredRun:
        (found,) = (run for run in self.runs.values() if run.name == name)
        return found

    def _answer(self, path: str, authorization: str, body: bytes) -> tuple[int, Any]:
        with self._lock:
            if path.startswith("/sdk/"):  # what the library tells of itself
                return 200, {}
            if self.status != 200:
                return self.status, {"errors": [{"message": "not today"}]}
            if authorization != "Basic " + base64.b64encode(f"api:{KEY}".encode()).decode():
                return 401, {"errors": [{"message": "user is not logged in"}], "data": None}
            if path.endswith("/file_stream"):
                return self._take(path.split("/")[-2], json.loads(body))
            if path == "/graphql":
                asked = json.loads(body)
                for name, answer in (
                    ("Viewer", self._viewer),
                    ("RunResumeStatus", self._resume),
                    ("UpsertBucket", self._upsert),
                    ("GetDefaultEntity", self._viewer),
                    ("RunSampledHistory", self._history),
                    ("Run", self._run),
                ):
                    if f" {name} " in asked["query"].replace("(", " "):
                        return 200, {"data": answer(asked.get("variables") or {})}
            return 404, {"errors": [{"message": "not here"}], "data": None}

    def _viewer(self, _: dict[str, Any]) -> Any:
        return {
            "viewer": {"id": "u", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
        }

    def _resume(self, asked: dict[str, Any]) -> Any:
        run = self.runs.get(asked["name"])
        bucket = run and {
            "id": f"of-{asked['name']}",
            "name": asked["name"],
            "summaryMetrics": run.summary,
            "displayName": run.name,
            "logLineCount": 0,
            "historyLineCount": len(run.lines),
            "eventsLineCount": 0,
            "historyTail": json.dumps(run.lines[-1:]),
            "eventsTail": "[]",
            "config": json.dumps(run.config),
            "tags": [],
            "notes": "",
            "wandbConfig": '{"t": 1}',
        }
        return {
            "model": {
                "id": "m",
                "name": asked["project"],
                "entity": {"id": "e", "name": "me"},
                "bucket": bucket or None,
            }
        }

    def _upsert(self, asked: dict[str, Any]) -> Any:
        own_id = asked["name"]
        is_new = own_id not in self.runs
        run = self.runs.setdefault(own_id, StoredRun())
        run.name = asked.get("displayName") or run.name
        run.group = asked.get("groupName") or run.group
        run.job_type = asked.get("jobType") or run.job_type
        if asked.get("config") and not run.is_shared:
            run.config = json.loads(asked["config"])
        if asked.get("displayName"):
            run.lives += 1
            run.is_finished = False
        project = {"id": "p", "name": asked["project"], "entity": {"id": "e", "name": "me"}}
        bucket = {
            "id": f"of-{own_id}",
            "name": own_id,
            "displayName": run.name,
            "description": "",
            "config": json.dumps(run.config),
            "sweepName": None,
            "historyLineCount": len(run.lines),
            "project": project,
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": is_new}}

    def _run(self, asked: dict[str, Any]) -> Any:
        run = self.runs[asked["name"]]
        told = {"id": f"of-{asked['name']}", "name": asked["name"], "displayName": run.name, "state": "running"}
        more = {"config": "{}", "summaryMetrics": run.summary, "systemMetrics": "{}", "tags": [], "projectId": "1"}
        return {"project": {"run": {**told, **more, "historyLineCount": len(run.lines), "user": {"name": "me"}}}}

    def _history(self, asked: dict[str, Any]) -> Any:
        (spec,) = (json.loads(text) for text in asked["specs"])
        keys = [key for key in spec["keys"] if key != "_step"]
        rows = [row for row in self.runs[asked["name"]].rows if all(key in row for key in keys)]
        return {"project": {"run": {"sampledHistory": [[{key: row[key] for key in keys} for row in rows]]}}}

    def _take(self, own_id: str, sent: dict[str, Any]) -> tuple[int, Any]:
        if self.rows_status != 200:
            return self.rows_status, {"error": "not today"}
        run = self.runs[own_id]
        for name, part in (sent.get("files") or {}).items():
            if name == "wandb-history.jsonl" and run.is_shared:
                run.lines += part["content"]
            elif name == "wandb-history.jsonl":
                run.lines[part["offset"] : part["offset"] + len(part["content"])] = part["content"]
            elif name == "wandb-summary.json":
                run.summary = part["content"][-1]
        run.is_finished = run.is_finished or bool(sent.get("complete"))
        return 200, {}


@contextmanager
def running_server() -> Iterator[WandbServer]:
    server = WandbServer()
    try:
        yield server
    finally:
        server.close()
