"""The compose file's own commands, variables, secrets and health checks, run as processes of this machine."""

import json
import shutil
import subprocess
import urllib.request
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

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


def test_prefect_refuses_names_of_hosts_and_pages_that_are_not_its_own(stack: Any) -> None:
    version, login = f"http://127.0.0.1:{stack.ports['server']}/api/admin/version", stack.secrets["PREFECT_AUTH_STRING"]
    headers = [{"Host": "server:4200"}, {"Host": "evil.example"}, {"Origin": "http://evil.example"}]
    assert [stack.status(version, login, names) for names in headers] == [200, 403, 403]


def test_the_pages_ask_the_server_that_they_came_from(stack: Any) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.ports['server']}/ui-settings", timeout=30) as answer:
        assert json.load(answer)["api_url"] == "/api"


@pytest.mark.skipif(shutil.which("nginx") is None, reason="not installed: nginx")
def test_the_gateway_passes_requests_and_web_sockets_on_and_keeps_pages_to_itself(stack: Any) -> None:
    address, login = stack.start_gateway(), stack.secrets["PREFECT_AUTH_STRING"]
    version = f"{address}/api/admin/version"
    assert [stack.status(version), stack.status(version, login)] == [401, 200]
    assert stack.status(version, login, {"Origin": address}) == 200
    assert stack.status(version, login, {"Host": "evil.example"}) == 403
    with urllib.request.urlopen(f"{address}/", timeout=30) as answer:
        assert answer.headers["Content-Security-Policy"] == "connect-src 'self'"
    events = f"{address.replace('http', 'ws', 1)}/api/events/out"
    with connect(events, subprotocols=[Subprotocol("prefect")], open_timeout=60) as socket:
        socket.send(json.dumps({"type": "auth", "token": login}))
        assert json.loads(socket.recv(timeout=60))["type"] == "auth_success"
    with connect(events, subprotocols=[Subprotocol("prefect")], open_timeout=60) as socket:
        socket.send(json.dumps({"type": "auth", "token": f"{login}x"}))
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)


def test_no_service_shows_a_secret_in_its_command_or_its_log(stack: Any) -> None:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    shown = listed + "".join(service.output for service in stack.running.values())
    for name, secret in stack.secrets.items():
        assert secret.replace("redis:6379", f"127.0.0.1:{stack.ports['redis']}") not in shown, name


def test_everything_is_deployed_and_a_worker_takes_up_its_pool_while_services_run_by_themselves(stack: Any) -> None:
    login, api = stack.secrets["PREFECT_AUTH_STRING"], f"http://127.0.0.1:{stack.ports['server']}/api"
    services = stack.start("services")
    stack.start("deploy").finish()
    assert stack.status(f"{api}/deployments/name/distill/demo", login) == 200
    worker = stack.start("worker-cpu")
    worker.wait_until(lambda: stack.is_healthy("worker-cpu"), "the worker is healthy")
    worker.wait_until(lambda: "Worker" in worker.output and "started" in worker.output, "the worker says so")
    assert services.process.poll() is None, services.output
