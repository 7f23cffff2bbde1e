"""Several API servers on one Postgres, with Redis between them and the services, set up as the compose file does it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import yaml

from tests.deployments.processes import Prefect, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[3]
TOOL = [sys.executable, "-m", "tasks.server.environment"]
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
    postgres: Callable[[str], str], redis_url: str, tmp_path: Path
) -> None:
    compose = yaml.safe_load((ROOT / "deployments" / "compose.yaml").read_text())
    database = httpx.URL(postgres("several"))
    # Every server of a test has a home, and with it a login, of its own.
    shipped = {key: str(value) for key, value in compose["x-prefect"].items() if key != "PREFECT_HOME"}
    assert shipped["PREFECT_SERVER_EVENTS_MESSAGING_BROKER"] == "prefect_redis.messaging"
    env = {
        **shipped,
        "PREFECT_SERVER_DATABASE_HOST": database.host,
        "PREFECT_SERVER_DATABASE_PORT": str(database.port),
        "PREFECT_SERVER_DATABASE_PASSWORD": database.password,
        "PREFECT_SERVER_DATABASE_NAME": "several",
        "PREFECT_REDIS_MESSAGING_URL": redis_url,
        "PREFECT_SERVER_DOCKET_URL": redis_url,
        "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",
    }
    first, second = (Prefect(tmp_path, "--no-services", **env) for _ in range(2))
    first.tool("prefect", "server", "database", "upgrade", "--yes")
    services = [*TOOL, "prefect", "server", "services", "start"]
    with first, second, first.launch(services, tmp_path / "services.log") as listening:
        with redis.Redis.from_url(redis_url) as client:
            listening.wait_until(
                lambda: any(client.xinfo_groups(stream) for stream in client.scan_iter(_type="stream")),
                "somebody reads the events",
            )
        first.tool("python", "-c", PROGRAM)
        # Servers hand on what they hear of task runs by Redis, and the services write it down.
        wait_until(lambda: states_at(second, "task_runs") == ["COMPLETED"] * 3, "the other server knows the task runs")
        assert states_at(second, "flow_runs") == ["COMPLETED"]


def states_at(server: Any, runs: str) -> list[str]:
    return [run["state_type"] for run in server.post(f"{runs}/filter", {})]
