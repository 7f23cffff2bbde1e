"""A real Prefect server that goes away and comes back, with what held a place on it and what asks it for something."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deployments.processes import Prefect, wait_until

PROGRAM = """
import asyncio, logging, sys
from prefect.client.orchestration import get_client
from tasks.server.outages import wait_out_outages

async def ask():
    async with get_client() as client:
        await client.hello()

wait_out_outages(lambda line: print(line.split(",")[0], flush=True))
with get_client(sync_client=True) as client:
    client.hello()
    print("answered", flush=True)
    sys.stdin.readline()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        try:
            client.hello()
        except Exception as error:
            print(type(error).__name__, flush=True)
    client.hello()
asyncio.run(ask())
"""
EARLIER = "2020-01-01T00:00:00+00:00"


@pytest.fixture
def prefect(tmp_path: Path) -> Iterator[Prefect]:
    with Prefect(tmp_path, PREFECT_SERVER_UI_ENABLED="false") as server:
        yield server


def pending_run(prefect: Any) -> Any:
    """Return a run of a deployment that lets one run at a time, whose place it has."""
    flow = prefect.post("flows/", {"name": "train-sft"})["id"]
    deployment = prefect.post("deployments/", {"name": "one", "flow_id": flow, "concurrency_limit": 1})["id"]
    run = prefect.post(f"deployments/{deployment}/create_flow_run", {})["id"]
    prefect.post(f"flow_runs/{run}/set_state", {"state": {"type": "PENDING"}})
    return prefect.get(f"flow_runs/{run}")


def make_late(prefect: Any) -> None:
    """Have all leases and all waits for a sign of life be over: the server was away for longer than they last."""
    leases = prefect.folder / "prefect" / "concurrency_leases"
    for path in leases.glob("*-*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"expiration": EARLIER}))
        (leases / "expirations.json").write_text(json.dumps({path.stem: EARLIER}))
    with closing(sqlite3.connect(prefect.folder / "prefect" / "prefect.db")) as database, database:
        assert database.execute("UPDATE automation_bucket SET [end] = '2020-01-01 00:00:00.000000'").rowcount == 1


def test_a_run_keeps_its_place_and_is_not_given_up_when_the_server_was_away_for_long(prefect: Any) -> None:
    prefect.tool("python", "deployments/automations.py")
    run = pending_run(prefect)
    lease = run["state"]["state_details"]["deployment_concurrency_lease_id"]
    database = prefect.folder / "prefect" / "prefect.db"
    with closing(sqlite3.connect(database)) as events:
        wait_until(lambda: events.execute("SELECT 1 FROM automation_bucket").fetchone(), "a wait for the run")
    prefect.kill()
    make_late(prefect)
    prefect.start()
    renewed = httpx.post(f"{prefect.api}/v2/concurrency_limits/leases/{lease}/renew", json={}, auth=prefect.auth)
    assert renewed.status_code == 204
    with closing(sqlite3.connect(database)) as events:
        assert events.execute("SELECT count(*) FROM automation_bucket WHERE [end] > datetime()").fetchone() == (1,)
    assert prefect.state(run["id"])["type"] == "PENDING"


def test_clients_wait_for_a_server_that_answered_before_and_say_so_once(prefect: Any) -> None:
    program = [sys.executable, "-c", PROGRAM]
    env = {**prefect.env, "PREFECT_API_AUTH_STRING": prefect.login, "PREFECT_CLIENT_MAX_RETRIES": "0"}
    with subprocess.Popen(program, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        assert asking.stdin is not None
        assert asking.stdout.readline() == "answered\n"
        prefect.kill()
        print(file=asking.stdin, flush=True)
        # What a signal ends has no time to wait.
        assert asking.stdout.readline() == "ConnectError\n"
        server = prefect.url.removeprefix("http://")
        assert asking.stdout.readline() == f"Prefect's server at {server} does not answer: waiting for it\n"
        prefect.start()
        assert asking.stdout.read() == f"Prefect's server at {server} answers again\n"
    assert asking.returncode == 0


def test_a_server_that_never_answered_is_not_waited_for(prefect: Any) -> None:
    env = {**prefect.env, "PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_CLIENT_MAX_RETRIES": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False)
    assert "ConnectError" in done.stderr
    assert done.stdout == ""
