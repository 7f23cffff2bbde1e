"""Several API servers on one Postgres, with Redis between them and the services, set up as the compose file does it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
PROGRAM = """
from prefect import flow, get_run_logger, task

@task
def double(number):
    return 2 * number

@flow
def several_servers():
    get_run_logger().info("doubling")
    return [double(number) for number in range(3)]

several_servers()
"""


def test_what_one_server_is_told_the_services_record_and_another_server_knows(
    servers: Any, postgres: Callable[[str], str], redis_url: str, tmp_path: Path
) -> None:
    compose = yaml.safe_load((ROOT / "deployments" / "compose.yaml").read_text())
    database = httpx.URL(postgres("several"))
    shipped = {key: str(value) for key, value in compose["x-prefect"].items()}
    assert shipped["PREFECT_SERVER_EVENTS_MESSAGING_BROKER"] == "prefect_redis.messaging"
    env = {
        **os.environ,
        **shipped,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_SERVER_DATABASE_HOST": database.host,
        "PREFECT_SERVER_DATABASE_PORT": str(database.port),
        "PREFECT_SERVER_DATABASE_PASSWORD": database.password,
        "PREFECT_SERVER_DATABASE_NAME": "several",
        "PREFECT_REDIS_MESSAGING_URL": redis_url,
        "PREFECT_SERVER_DOCKET_URL": redis_url,
        "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",
    }
    migrate = [BIN / "prefect", "server", "database", "upgrade", "--yes"]
    done = subprocess.run(migrate, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    command = [str(BIN / "prefect"), "server", "start", "--no-services"]
    first, second = (servers.start_http(name, command, "/api/ready", env) for name in ("first", "second"))
    with redis.Redis.from_url(redis_url) as client:

        def services_listen() -> None:
            if not any(client.xinfo_groups(stream) for stream in client.scan_iter(_type="stream")):
                raise ConnectionError("nobody reads the events yet")

        services = {**env, "PREFECT_API_URL": f"{first}/api"}
        servers.start("services", [str(BIN / "prefect"), "server", "services", "start"], services_listen, env=services)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**env, "PREFECT_API_URL": f"{first}/api"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # Servers hand on what they hear of task runs by Redis, and the services write it down.
    deadline = time.monotonic() + 600
    while (states := states_at(second)) != ["COMPLETED"] * 3:
        assert time.monotonic() < deadline, states
        time.sleep(0.2)
    [run] = httpx.post(f"{second}/api/flow_runs/filter", json={}, timeout=30).raise_for_status().json()
    assert run["state_type"] == "COMPLETED"


def states_at(url: str) -> list[str]:
    answer = httpx.post(f"{url}/api/task_runs/filter", json={}, timeout=30).raise_for_status()
    return [task_run["state_type"] for task_run in answer.json()]
