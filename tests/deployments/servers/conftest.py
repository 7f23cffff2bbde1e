"""Postgres and Redis from the system's packages, on free ports of loopback, in folders of their own."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import redis

from tests.deployments.processes import Launched, free_port

PASSWORD: Final = "of-a-test"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Callable[[str], str]]:
    """Make a database and return its address as `postgresql://USER:PASSWORD@HOST:PORT/NAME`."""
    programs = _programs()
    # Postgres refuses to run as root, and pytest's own folders are closed to others.
    user = _unprivileged() if os.geteuid() == 0 else None
    with _open_folder(user) as folder:
        data, password = folder / "data", folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        initdb = [programs / "initdb", "-D", data, "-U", "stillhouse", "-A", "scram-sha-256", "--no-sync"]
        command = [*map(str, initdb), f"--pwfile={password}", "--encoding=UTF8", "--locale=C"]
        done = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        port = str(free_port())
        url = f"postgresql://stillhouse:{PASSWORD}@127.0.0.1:{port}"

        def connect() -> Any:
            return psycopg.connect(f"{url}/postgres", autocommit=True, connect_timeout=10)

        def is_up() -> bool:
            with suppress(psycopg.OperationalError), connect():
                return True
            return False

        def make(name: str) -> str:
            with connect() as connection:
                connection.execute(f"CREATE DATABASE {name}")
            return f"{url}/{name}"

        command = [programs / "postgres", "-D", data, "-h", "127.0.0.1", "-p", port, "-k", folder, "-F"]
        with Launched(list(map(str, command)), folder / "log", user=user, cwd="/") as server:
            server.wait_until(is_up, "Postgres takes connections")
            yield make
            # What is killed leaves its shared memory behind.
            server.end(signal.SIGINT)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a Redis server."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here: apt-get install redis-server")
    port, folder = free_port(), tmp_path_factory.mktemp("redis")
    url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--requirepass", PASSWORD]

    def is_up() -> bool:
        with suppress(redis.RedisError), closing(redis.Redis.from_url(url)) as client:
            return bool(client.ping())
        return False

    with Launched([*command, "--save", "", "--dir", str(folder)], folder / "log") as server:
        server.wait_until(is_up, "Redis answers")
        yield url


def _programs() -> Path:
    """Return the folder of Postgres's programs, which Debian leaves out of PATH."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs and (path := shutil.which("initdb")) is not None:
        programs = [Path(path)]
    if not programs:
        pytest.skip("no Postgres here: apt-get install postgresql")
    return programs[-1].parent


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
