"""Builds the Kafka Streams peer with Maven, once for each state of its source, and knows its topics."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import rig
from confluent_kafka.admin import AdminClient

SOURCE = rig.HERE / "peers" / "kafka_streams"


def command() -> list[str] | None:
    """Returns the command that runs it, or None, said plainly, where it can't be built here."""
    java, maven = shutil.which("java"), shutil.which("mvn")
    jars = _jars_path()
    if java is None or (maven is None and not jars.is_dir()):
        print(f"Kafka Streams is left out: no {'Java' if java is None else 'Maven'} here")
        return None
    if not jars.is_dir():
        assert maven is not None
        reason = _build(maven, jars)
        if reason:
            print(f"Kafka Streams is left out: Maven can't build it ({reason})")
            return None
    return [java, "-Xmx1g", "-cp", f"{jars}/*", "peers.StepMetrics"]


def internal_topics(bootstrap: str, application: str) -> Sequence[str]:
    """Returns the topics that it made for itself."""
    topics = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=30).topics
    return [name for name in topics if name.startswith(application)]


def _jars_path() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream-metrics-tests"
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return base / f"kafka-streams-peer-{digest.hexdigest()[:16]}"


def _build(maven: str, jars: Path) -> str:
    """Returns why it couldn't be built; empty where it could."""
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as scratch:
        copy = Path(scratch) / "source"
        shutil.copytree(SOURCE, copy)
        made = Path(scratch) / "jars"
        goals = ("package", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={made}")
        done = subprocess.run(
            (maven, "-q", "-B", "-Dstyle.color=never", *goals),
            cwd=copy,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            return next(iter(done.stdout.strip().splitlines()), "no reason given")[:200]
        for jar in (copy / "target").glob("*.jar"):
            shutil.copy(jar, made)
        made.rename(jars)
    return ""
