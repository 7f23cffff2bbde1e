"""Postgres and Redis from the system's packages, on free ports of loopback, in folders of their own."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import psycopg
import pytest
import redis

ROOT: Final = Path(__file__).resolve().parents[3]
BIN: Final = Path(sys.executable).parent
PASSWORD: Final = "of-a-test"


class Address(NamedTuple):
    """Where a server of this test is."""

    host: str
    port: int


class Servers:
    """Starts server processes, each in a session of its own, which end with the test however it ends."""

    def __init__(self, folder: Path, ended: ExitStack) -> None:
        self.folder = folder
        self._ended = ended

    def start(
        self,
        name: str,
        command: list[str],
        is_up: Callable[[], object],
        *,
        env: Mapping[str, str] | None = None,
        stop: signal.Signals = signal.SIGTERM,
        user: str | None = None,
    ) -> Callable[[], None]:
        """Returns once `is_up` does, without an error that says not yet; what it returns stops the server."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                command,
                env={**os.environ, **(env or {})},
                stdout=out,
                stderr=out,
                start_new_session=True,
                user=user,
                cwd=ROOT if user is None else "/",
            )

        def end() -> None:
            if process.poll() is None:
                process.send_signal(stop)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        self._ended.callback(end)
        deadline = time.monotonic() + 600
        while True:
            assert process.poll() is None, f"{name} ended:\n{log.read_text()[-3000:]}"
            try:
                is_up()
                return end
            except (OSError, httpx.HTTPError, psycopg.OperationalError, redis.RedisError):
                assert time.monotonic() < deadline, f"{name} is not up:\n{log.read_text()[-3000:]}"
                time.sleep(0.1)

    def start_http(self, name: str, command: list[str], health: str, env: Mapping[str, str]) -> str:
        """A server that takes `--host` and `--port`; its URL, once `health` below it answers."""
        address = free_address()
        url = f"http://{address.host}:{address.port}"
        whole = [*command, "--host", address.host, "--port", str(address.port)]
        self.start(name, whole, lambda: httpx.get(url + health, timeout=5).raise_for_status(), env=env)
        return url


def free_address() -> Address:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return Address(*probe.getsockname())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as ended:
        yield Servers(tmp_path_factory.mktemp("servers"), ended)


@pytest.fixture(scope="module")
def postgres(servers: Servers) -> Iterator[Callable[[str], str]]:
    """Makes a database and gives its address as `postgresql://USER:PASSWORD@HOST:PORT/NAME`."""
    programs = _programs()
    # Postgres refuses to run as root, and pytest's own folders are closed to others.
    user = _unprivileged() if os.geteuid() == 0 else None
    with _open_folder(user) as folder:
        data, password = folder / "data", folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        initdb = [programs / "initdb", "-D", data, "-U", "stillhouse", "-A", "scram-sha-256", "--no-sync"]
        made = subprocess.run(
            [*map(str, initdb), f"--pwfile={password}", "--encoding=UTF8", "--locale=C"],
            user=user,
            cwd="/",
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        address = free_address()

        def connect(database: str = "postgres") -> Any:
            return psycopg.connect(f"{url}/{database}", autocommit=True, connect_timeout=10)

        url = f"postgresql://stillhouse:{PASSWORD}@{address.host}:{address.port}"
        command = [programs / "postgres", "-D", data, "-h", address.host, "-p", address.port, "-k", folder, "-F"]
        end = servers.start(
            "postgres", list(map(str, command)), lambda: connect().close(), stop=signal.SIGINT, user=user
        )

        def make(name: str) -> str:
            with connect() as connection:
                connection.execute(f"CREATE DATABASE {name}")
            return f"{url}/{name}"

        yield make
        end()


@pytest.fixture(scope="module")
def redis_url(servers: Servers) -> str:
    """The address of a Redis server."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here: apt-get install redis-server")
    address = free_address()
    url = f"redis://:{PASSWORD}@{address.host}:{address.port}/0"
    command = [program, "--bind", address.host, "--port", str(address.port), "--requirepass", PASSWORD]

    def is_up() -> None:
        with closing(redis.Redis.from_url(url)) as client:
            client.ping()

    servers.start("redis", [*command, "--save", "", "--dir", str(servers.folder)], is_up)
    return url


def _programs() -> Path:
    """The folder of Postgres's programs, which Debian leaves out of PATH."""
    found = [Path(path) for path in (shutil.which("initdb"),) if path is not None]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no Postgres here: apt-get install postgresql")
    return found[-1].parent


def _unprivileged() -> str:
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    pytest.skip("Postgres does not run as root, and there is no user `postgres` or `nobody`")


@contextmanager
def _open_folder(user: str | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="stillhouse-postgres-"))
    try:
        if user is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        yield folder
    finally:
        shutil.rmtree(folder)
