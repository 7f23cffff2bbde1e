"""Programs of the same machine and pages of other sites get nothing from the servers that a user or a run starts."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.deployments.processes import Launched
from tests.waiting import arguments

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EVIL = [{"Host": "evil.test"}, {"Host": "evil.test:4200"}, {"Origin": "http://evil.test"}, {"Origin": "null"}]
TEMPORARY = """
import sys, time
from tasks.server.environment import set_defaults
set_defaults()
from tasks.server.temporary_server import start_temporary_server
start_temporary_server()
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    client.api_version()
    assert client.read_flows() == []
    print(client.api_url, flush=True)
    time.sleep(600)
"""


def _create_flow(api: str, auth: httpx.BasicAuth | None, headers: dict[str, str]) -> httpx.Response:
    return httpx.post(f"{api}/flows/", json={"name": "planted"}, headers=headers, auth=auth, timeout=60)


def test_the_server_answers_those_alone_who_log_in(prefect: Any) -> None:
    assert _create_flow(prefect.api, None, {}).status_code == 401
    assert _create_flow(prefect.api, httpx.BasicAuth("stillhouse", "guess"), {}).status_code == 401
    assert _create_flow(prefect.api, prefect.auth, {}).status_code == 201


@pytest.mark.parametrize("headers", EVIL)
def test_pages_of_other_sites_get_nothing_from_the_server_even_with_the_login(
    prefect: Any, headers: dict[str, str]
) -> None:
    answer = _create_flow(prefect.api, prefect.auth, headers)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert httpx.get(f"{prefect.url}/", headers=headers, timeout=60).status_code == 403


def test_web_sockets_of_other_sites_are_refused(prefect: Any) -> None:
    with pytest.raises(InvalidStatus):
        connect(f"{prefect.api.replace('http', 'ws', 1)}/events/out", origin=Origin("http://evil.test"))


def test_the_terminal_says_where_the_password_is_and_never_what_it_is(prefect: Any) -> None:
    said = (prefect.folder / f"server-{httpx.URL(prefect.url).port}.log").read_text()
    assert str(prefect.folder / "prefect" / "server-login") in said
    assert prefect.login.split(":")[1] not in said


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_both_versions_of_the_pages_ask_for_the_password_and_open(page: Any, prefect: Any, version: str) -> None:
    page.context.clear_cookies()
    page.context.add_cookies([{"name": "prefect_ui_version", "value": version, "url": prefect.url}])
    page.goto(f"{prefect.url}{'/v2' if version == 'v2' else ''}/flows", wait_until="commit")
    if version == "v2":
        page.evaluate("localStorage.clear()")
        page.reload()
    prefect.log_in(page)
    page.get_by_text("Work Pools").first.wait_for()


def test_the_server_of_a_run_has_a_login_of_its_own_that_no_command_line_and_no_log_shows(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    env["PREFECT_HOME"] = str(tmp_path / "prefect")
    log = tmp_path / "run.log"
    with Launched([sys.executable, "-c", TEMPORARY], log, env=env, cwd=tmp_path) as run:
        run.wait_until(lambda: "http" in run.output, "its server answers")
        api = run.output.split()[-1].rstrip("/")
        assert _create_flow(api, None, {}).status_code == 401
        (server,) = [process for process in run.family() if "tasks.server.temporary_server" in arguments(process)]
        login = server.environ()["PREFECT_SERVER_API_AUTH_STRING"]
        auth = httpx.BasicAuth(*login.split(":"))
        assert _create_flow(api, auth, {}).status_code == 201
        for headers in EVIL:
            assert _create_flow(api, auth, headers).status_code == 403
        password = login.split(":")[1]
        assert password not in run.output
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                assert password not in " ".join(process.cmdline())
        assert run.end(signal.SIGKILL) == -signal.SIGKILL


@pytest.mark.parametrize("headers", EVIL)
def test_mlflow_refuses_pages_of_other_sites(mlflow: Any, headers: dict[str, str]) -> None:
    body = {"name": f"planted-{next(iter(headers.values()))}"}
    answer = httpx.post(f"{mlflow.url}/api/2.0/mlflow/experiments/create", json=body, headers=headers, timeout=60)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
