"""Finds or starts a real Kafka broker for tests: one given by the environment, a container, or a plain Java process.

A broker that was started here keeps its port and its data over `stop` and `start`, and has four listeners. Clients
come through one, the broker reaches itself through the second: with only one, whose address is the published one, a
broker in a container can't reach itself, and every transaction hangs. The third one is published at an address where
nobody listens until a test puts a proxy there: clients follow what is published, so all they say then goes through it.
Who comes through the fourth has a name and a password, and may do only what he was given; the others may do all.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from support.waiting import wait_until

PUBLIC_IMAGE = "apache/kafka:4.1.0"
LOCAL_IMAGE = "stream-metrics/kafka:4.1.0"  # what `make image` builds

_POM = Path(__file__).parents[1] / "kafka-image" / "pom.xml"
_JVM_FLAGS = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # a broker that starts fast and lives short
_START_SECONDS = 180.0
_STOP_SECONDS = 30.0

USER, PASSWORD = "somebody", "secret"
"""Who comes through the listener that asks."""

_SETTINGS = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "BROKER",
    "listener.security.protocol.map": (
        "CONTROLLER:PLAINTEXT,BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,SECURED:SASL_PLAINTEXT"
    ),
    "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.secured.plain.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "auto.create.topics.enable": "false",  # a wrong topic name is an error, not a new topic
    # A killed broker registers again only once its old session is over (9 s by default).
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # It looks for transactions that are too old every 10 s by default, and tests wait for that.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "5",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


class UnavailableError(Exception):
    """This way of getting a broker doesn't work here; the message says why. The next way is tried."""


class Broker(ABC):
    """A broker that runs. Stopping, starting, pausing and resuming twice changes nothing.

    Attributes:
        bootstrap: `bootstrap.servers` for clients; stays the same as long as the broker lives.
        proxied_bootstrap: Where a test's proxy listens, for clients whose every connection is to go through it.
        proxy_target: Where that proxy forwards to.
        secured_bootstrap: Where clients say who they are.
        description: What it is, for people.
        can_be_stopped: Whether anything but `bootstrap` may be used.
    """

    bootstrap: str
    proxied_bootstrap: str
    proxy_target: str
    secured_bootstrap: str
    description: str
    can_be_stopped: ClassVar[bool] = True

    @abstractmethod
    def start(self) -> None:
        """The broker runs, isn't paused, and answers."""

    @abstractmethod
    def stop(self) -> None:
        """The broker has shut down in order; its data stays."""

    @abstractmethod
    def kill(self) -> None:
        """The broker is gone as after `kill -9`; its data stays as it was."""

    @abstractmethod
    def pause(self) -> None:
        """The broker answers nothing, but its connections stay open."""

    @abstractmethod
    def unpause(self) -> None:
        """The broker goes on where it was paused."""

    @abstractmethod
    def close(self) -> None:
        """Broker and data are gone."""

    def _hold(self, address: str) -> None:
        """Nobody is given this port as a free one; a proxy that asks for it by number, and shares it, gets it."""
        host, _, port = address.rpartition(":")
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._held.bind((host, int(port)))

    def restart(self) -> None:
        """The broker has shut down in order and answers again."""
        self.stop()
        self.start()

    def _wait_until_it_answers(self, check_alive: Callable[[], None]) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200})

        def answers() -> bool:
            check_alive()
            with contextlib.suppress(KafkaException):
                return bool(admin.list_topics(timeout=1).brokers)
            return False

        wait_until(answers, f"an answer of {self.description} at {self.bootstrap}", _START_SECONDS)


class ExternalBroker(Broker):
    """A broker that somebody else runs, which tests only talk to."""

    can_be_stopped = False

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.description = f"the broker at {bootstrap}"
        self._wait_until_it_answers(lambda: None)

    def start(self) -> None:
        self._refuse()

    def stop(self) -> None:
        self._refuse()

    def kill(self) -> None:
        self._refuse()

    def pause(self) -> None:
        self._refuse()

    def unpause(self) -> None:
        self._refuse()

    def close(self) -> None:
        """Leaves it as it is."""

    def _refuse(self) -> None:
        raise AssertionError(f"{self.description} isn't ours to start or stop: use the fixture `stoppable_broker`")


class ContainerBroker(Broker):
    """A broker in a Docker container, made through testcontainers."""

    def __init__(self, image: str, settings: dict[str, str]) -> None:
        # Ryuk removes what a killed test run leaves behind, but is one more image to pull. It must be said before the
        # import, where some versions read it.
        if image == LOCAL_IMAGE:
            os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
        from testcontainers.core.container import DockerContainer

        port, proxied, proxy, secured = _free_ports(4)
        self._container = DockerContainer(image)
        host = self._container.get_docker_client().host()
        host = "127.0.0.1" if host == "localhost" else host
        self.bootstrap = f"{host}:{port}"
        self.proxied_bootstrap = f"127.0.0.1:{proxy}"
        self._hold(self.proxied_bootstrap)
        self.proxy_target = f"{host}:{proxied}"
        self.secured_bootstrap = f"{host}:{secured}"
        self.description = f"a container of {image}"
        settings = settings | {
            "listeners": "PLAINTEXT://:9092,PROXIED://:9095,SECURED://:9096,BROKER://:9094,CONTROLLER://:9093",
            "advertised.listeners": (
                f"PLAINTEXT://{self.bootstrap},PROXIED://{self.proxied_bootstrap},SECURED://{self.secured_bootstrap},"
                "BROKER://localhost:9094"
            ),
            "controller.quorum.voters": "1@localhost:9093",
            "log.dirs": "/var/lib/kafka/data",
        }
        for name, value in settings.items():
            self._container.with_env("KAFKA_" + name.replace(".", "_").upper(), value)
        self._container.with_env("KAFKA_JVM_PERFORMANCE_OPTS", " ".join(_JVM_FLAGS[1:]))
        self._container.with_bind_ports(9092, port)
        self._container.with_bind_ports(9095, proxied)
        self._container.with_bind_ports(9096, secured)
        self._is_paused = False
        try:
            self._container.start()
            self._wait_until_it_answers(self._check_alive)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        self.unpause()
        if self._docker.status != "running":
            self._docker.start()
            self._wait_until_it_answers(self._check_alive)

    def stop(self) -> None:
        self.unpause()
        self._docker.stop(timeout=int(_STOP_SECONDS))

    def kill(self) -> None:
        self.unpause()
        if self._docker.status == "running":
            self._docker.kill()
            self._docker.wait()

    def pause(self) -> None:
        if not self._is_paused:
            self._docker.kill(signal="SIGSTOP")  # Docker's own pause fails on a machine at work: "unable to freeze"
            self._is_paused = True

    def unpause(self) -> None:
        if self._is_paused:
            self._docker.kill(signal="SIGCONT")
            self._is_paused = False

    def close(self) -> None:
        self._held.close()
        self._container.stop()

    @property
    def _docker(self) -> Any:
        container = self._container.get_wrapped_container()
        container.reload()
        return container

    def _check_alive(self) -> None:
        if self._docker.status != "running":
            log = self._docker.logs(tail=30).decode(errors="replace")
            raise AssertionError(f"{self.description} has ended:\n{log}")


class ProcessBroker(Broker):
    """A broker as a plain Java process, from the jars that Maven fetches.

    Args:
        java: The program.
        jars: The directory of the jars.
        settings: Of the broker, beside those that follow from its ports.
        node: Its place among `controllers`, from 1 on.
        controllers: The ports at which the nodes of its cluster talk; without, it is alone.
    """

    description = "a Java process"

    def __init__(
        self, java: str, jars: Path, settings: dict[str, str], node: int = 1, controllers: Sequence[int] = ()
    ) -> None:
        self._command = (java, *_JVM_FLAGS, "-cp", f"{jars}/*")
        self._dir = Path(tempfile.mkdtemp(prefix="stream-metrics-broker-"))
        self._properties = self._dir / "server.properties"
        self._log = self._dir / "log"
        self._process: subprocess.Popen[bytes] | None = None
        clients, itself, controller, proxied, proxy, secured = _free_ports(6)
        controllers = controllers or [controller]
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
        self.bootstrap = f"127.0.0.1:{clients}"
        self.proxied_bootstrap = f"127.0.0.1:{proxy}"
        self._hold(self.proxied_bootstrap)
        self.proxy_target = f"127.0.0.1:{proxied}"
        self.secured_bootstrap = f"127.0.0.1:{secured}"
        listeners = (
            f"PLAINTEXT://{self.bootstrap},BROKER://127.0.0.1:{itself},SECURED://{self.secured_bootstrap},PROXIED://"
        )
        settings = settings | {
            "node.id": str(node),
            "listeners": f"{listeners}{self.proxy_target},CONTROLLER://127.0.0.1:{controllers[node - 1]}",
            "advertised.listeners": f"{listeners}{self.proxied_bootstrap}",
            "controller.quorum.voters": voters,
            "log.dirs": str(self._dir / "data"),
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        try:
            format_storage = ("kafka.tools.StorageTool", "format", "-t", "5L6g3nShT-eMCtK--X86sw", "-c")
            with self._log.open("ab") as log:
                self._run((*format_storage, str(self._properties)), log).wait()
            if len(controllers) == 1:
                self.start()
            else:  # alone it can't answer
                self._launch()
        except BaseException:
            self.close()
            raise

    def _launch(self) -> None:
        if self._process is None:
            with self._log.open("ab") as log:
                self._process = self._run(("kafka.Kafka", str(self._properties)), log)

    def start(self) -> None:
        self._launch()
        self.unpause()
        self._wait_until_it_answers(self._check_alive)

    def stop(self) -> None:
        self.unpause()
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def unpause(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._held.close()
        self.kill()
        shutil.rmtree(self._dir, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _run(self, arguments: tuple[str, ...], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return _starter.submit(
            subprocess.Popen,
            (*self._command, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,
        ).result()

    def _check_alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            tail = self._log.read_text(errors="replace").splitlines()[-30:]
            raise AssertionError("\n".join((f"{self.description} has ended:", *tail)))


class Cluster:
    """Three brokers that hold all topics together, so that leaders and coordinators move when one of them goes.

    Attributes:
        nodes: The brokers.
        bootstrap: `bootstrap.servers` for clients: all of them.

    Raises:
        UnavailableError: There is no Java here, or no broker's jars.
    """

    def __init__(self) -> None:
        java = shutil.which("java")
        if java is None:
            raise UnavailableError("no Java")
        jars, ports = _jars(), _free_ports(3)
        settings = {
            **_SETTINGS,
            **{f"{kind}.replication.factor": "3" for kind in ("offsets.topic", "transaction.state.log", "default")},
            # On a busy machine a controller answers late, and the vote on another comes no further than the one before.
            "controller.quorum.fetch.timeout.ms": "6000",
            "controller.quorum.request.timeout.ms": "4000",
        }
        self.nodes: list[Broker] = []
        try:
            for node in (1, 2, 3):
                self.nodes.append(ProcessBroker(java, jars, settings, node, ports))
            self.bootstrap = ",".join(one.bootstrap for one in self.nodes)
            for one in self.nodes:
                one.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Brokers and data are gone."""
        for one in self.nodes:
            one.close()


def find_broker(*, is_stoppable: bool = False, settings: Mapping[str, str] | None = None) -> Broker:
    """Returns a broker that answers, by the first way that works here; the caller closes it.

    Args:
        is_stoppable: Leaves out a broker that isn't ours to stop.
        settings: Of the broker, instead of those that tests have; only for one that is ours.

    Raises:
        UnavailableError: No way works; the message has each way's reason.
    """
    given = _SETTINGS | dict(settings or {})
    ways: list[Callable[[], Broker]] = [lambda: _container(given), lambda: _process(given)]
    if not is_stoppable and not settings:
        ways.insert(0, _external)
    reasons = []
    for way in ways:
        try:
            return way()
        except UnavailableError as error:
            reasons.append(str(error))
    raise UnavailableError("; ".join(reasons))


def _external() -> Broker:
    bootstrap = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if not bootstrap:
        raise UnavailableError("KAFKA_BOOTSTRAP_SERVERS isn't set")
    return ExternalBroker(bootstrap)


def _container(settings: dict[str, str]) -> Broker:
    try:
        import docker
        from docker.errors import DockerException
    except ImportError:
        raise UnavailableError("testcontainers isn't installed") from None
    reason = ""
    with warnings.catch_warnings():
        # Where no engine answers, a socket is left to the garbage collector, whose warning would hit a later test.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            client = docker.from_env()
        except DockerException as error:
            reason = _root_cause(error)
        gc.collect()
    if reason:
        raise UnavailableError(f"no Docker engine ({reason})")
    with contextlib.closing(client):
        try:
            image = _image(client)
        except (DockerException, OSError) as error:
            raise UnavailableError(f"no Kafka image for Docker ({_root_cause(error)})") from None
    return ContainerBroker(image, settings)


def _image(client: Any) -> str:
    """Returns an image that the engine has: the wanted one, else our own, else the wanted one once it is pulled."""
    from docker.errors import ImageNotFound

    given = os.environ.get("KAFKA_IMAGE")
    wanted = given or PUBLIC_IMAGE
    for image in (wanted,) if given else (wanted, LOCAL_IMAGE):
        with contextlib.suppress(ImageNotFound):
            client.images.get(image)
            return image
    client.images.pull(wanted)
    return wanted


def _process(settings: dict[str, str]) -> Broker:
    java = shutil.which("java")
    if java is None:
        raise UnavailableError("no Java")
    return ProcessBroker(java, _jars(), settings)


def _jars() -> Path:
    """Returns the directory of the broker's jars, which are fetched once for each state of the list of them."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream-metrics-tests"
    jars = base / f"kafka-{hashlib.sha256(_POM.read_bytes()).hexdigest()[:16]}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise UnavailableError("no Maven")
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base) as scratch:
        fetched = Path(scratch) / "jars"
        command = (maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={fetched}")
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise UnavailableError(f"Maven can't fetch the broker's jars ({_first_line(done.stdout)})")
        with contextlib.suppress(OSError):  # another test run was faster
            fetched.rename(jars)
    return jars


_given_ports: set[int] = set()


def _free_ports(count: int) -> list[int]:
    """Returns ports that the system says are free, none of them a second time: who was given one may not use it yet.

    Workers of one test run take a share each, for the same reason.
    """
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    shares = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            is_ours = port // 2 % shares == share % shares  # by pairs: Linux gives odd ones only, while there are any
            if is_ours and port not in _given_ports:
                _given_ports.add(port)
                ports.append(port)
    return ports


_starter = ThreadPoolExecutor(1, thread_name_prefix="starter")
"""Starts what dies with its parent: for that the kernel takes the thread, and a test's may end before the test."""


def _die_with_parent() -> None:
    """The process is killed when the test run is, so that nobody finds a stray broker next week."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _root_cause(error: BaseException) -> str:
    while error.__context__ is not None:
        error = error.__context__
    return _first_line(getattr(error, "explanation", None) or getattr(error, "strerror", None) or error)


def _first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def closing(broker: Broker) -> Iterator[Broker]:
    """Yields the broker and closes it: the body of a fixture."""
    try:
        yield broker
    finally:
        broker.close()
