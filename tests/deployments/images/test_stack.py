"""The compose file's own commands, variables, secrets and health checks, run as processes of this machine."""

import json
import subprocess
import urllib.request
from typing import Any

import pytest

# Four servers start first, which takes two minutes on two cores and ten on two busy ones.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_prefect_answers_those_alone_who_log_in(stack: Any) -> None:
    version = f"http://127.0.0.1:{stack.ports['server']}/api/admin/version"
    login = stack.secrets["PREFECT_AUTH_STRING"]
    assert [stack.status(version), stack.status(version, f"{login}x"), stack.status(version, login)] == [401, 401, 200]


def test_mlflow_answers_those_alone_who_log_in(stack: Any) -> None:
    version = f"http://127.0.0.1:{stack.ports['mlflow']}/api/2.0/mlflow/experiments/get?experiment_id=0"
    login = f"admin:{stack.secrets['MLFLOW_PASSWORD']}"
    assert [stack.status(version), stack.status(version, f"{login}x"), stack.status(version, login)] == [401, 401, 200]
    artifacts = f"http://127.0.0.1:{stack.ports['mlflow']}/api/2.0/mlflow-artifacts/artifacts?path=0"
    assert stack.status(artifacts) == 401


def test_mlflow_refuses_names_of_hosts_that_are_not_its_own(stack: Any) -> None:
    pages = f"http://127.0.0.1:{stack.ports['mlflow']}/"
    login = f"admin:{stack.secrets['MLFLOW_PASSWORD']}"
    statuses = [
        stack.status(pages, login, {"Host": host}) for host in ("mlflow:5000", "localhost:5000", "evil.example")
    ]
    assert statuses == [200, 200, 403]


def test_the_pages_ask_the_server_that_they_came_from(stack: Any) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.ports['server']}/ui-settings", timeout=30) as answer:
        assert json.load(answer)["api_url"] == "/api"


def test_no_service_shows_a_secret_in_its_command_or_its_log(stack: Any) -> None:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    told = listed + "".join(stack.log(name) for name in stack.running)
    for name, secret in stack.secrets.items():
        assert secret.replace("redis:6379", f"127.0.0.1:{stack.ports['redis']}") not in told, name


def test_services_run_beside_several_servers_and_a_worker_finds_its_pool(stack: Any) -> None:
    services = stack.start("services")
    stack.start("worker-cpu")
    stack.wait("worker-cpu", lambda: stack.is_healthy("worker-cpu"))
    pool = f"http://127.0.0.1:{stack.ports['server']}/api/work_pools/cpu"
    stack.wait("worker-cpu", lambda: stack.status(pool, stack.secrets["PREFECT_AUTH_STRING"]) == 200)
    assert services.poll() is None, stack.log("services")
