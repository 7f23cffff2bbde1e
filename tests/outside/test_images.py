"""The images, built by buildah and run by podman; their servers and a worker as the compose file starts them.

Where Docker Hub cannot be reached, stand-ins of its images are made from Debian's packages.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deployments.processes import free_port
from tests.outside.compose_secrets import SECRETS
from tests.outside.compose_stack import ComposeStack
from tests.outside.containers import Containers

pytestmark = [pytest.mark.outside, pytest.mark.containers, pytest.mark.timeout(3600)]


def smoke(containers: Containers, image: str, runs: Path) -> str:
    """Return what the smoke DAG says in a container without network or capabilities."""
    assert containers.inspect(image)["User"] == "10001"
    runs.mkdir()
    os.chown(runs, 10001, 10001)
    command = ["stillhouse", "distill", "configs/smoke.yaml"]
    options = ["--network", "none", "--cap-drop", "all", "--volume", f"{runs}:/app/runs"]
    shown = containers.run("podman", "run", "--rm", *options, image, *command).stdout
    [report] = runs.glob("reports/*/report.html")
    assert report.stat().st_uid == 10001
    return shown


def test_the_image_for_the_cpu_is_below_two_gigabytes_and_runs_the_dag_as_a_user_without_power(
    containers: Containers, cpu_image: str, tmp_path: Path
) -> None:
    assert containers.inspect(cpu_image)["Size"] < 2e9
    assert "evaluation" in smoke(containers, cpu_image, tmp_path / "runs")


def test_the_image_for_gpus_has_torch_for_cuda_and_runs_the_dag_where_there_is_no_gpu(
    containers: Containers, build_image: Callable[[str], str], tmp_path: Path
) -> None:
    if shutil.disk_usage(containers.folder).free < 40e9:
        pytest.skip("the image for GPUs takes 20 GB, and twice that while it is built")
    image = build_image("gpu")
    cuda = ["podman", "run", "--rm", image, "python", "-c", "import torch; print(torch.version.cuda)"]
    assert containers.run(*cuda).stdout.startswith("13.")
    assert "evaluation" in smoke(containers, image, tmp_path / "runs")


@pytest.fixture(scope="module")
def stack(
    containers: Containers, cpu_image: str, podman_compose: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComposeStack]:
    folder = tmp_path_factory.mktemp("compose")
    stack = ComposeStack(containers, podman_compose, folder, {"PREFECT": free_port(), "MLFLOW": free_port()})
    for image in stack.images():
        containers.make_stand_in(image)
    stack.stop()
    try:
        stack.start("postgres")
        stack.start("redis")
        stack.finish("migrate")
        for service in ("server", "services", "gateway", "mlflow"):
            stack.start(service)
        stack.finish("deploy")
        stack.start("worker-cpu")
        yield stack
    finally:
        stack.stop()


def test_a_worker_runs_the_dag_and_both_servers_ask_for_a_login(stack: ComposeStack) -> None:
    deployment = ["prefect", "deployment", "run", "distill/smoke-distill", "--watch", "--watch-timeout", "1500"]
    assert "Completed" in stack.run_in("worker-cpu", *deployment)
    # Servers that record a run which has just ended take their time.
    client = httpx.Client(timeout=120, follow_redirects=True)
    prefect, mlflow = stack.url("PREFECT"), stack.url("MLFLOW")
    login = httpx.BasicAuth(*SECRETS["PREFECT_AUTH_STRING"].split(":"))
    runs = f"{prefect}/api/flow_runs/filter"
    assert client.post(runs, json={}).status_code == 401
    states = [run["state_type"] for run in client.post(runs, json={}, auth=login).raise_for_status().json()]
    # Those that are scheduled for the night wait.
    assert set(states) == {"COMPLETED", "SCHEDULED"}
    page = client.get(prefect).raise_for_status()
    assert page.headers["content-type"].startswith("text/html")
    admin = httpx.BasicAuth("admin", SECRETS["MLFLOW_PASSWORD"])
    search = f"{mlflow}/api/2.0/mlflow/experiments/search"
    assert client.post(search, json={"max_results": 5}).status_code == 401
    experiments = client.post(search, json={"max_results": 5}, auth=admin).raise_for_status().json()["experiments"]
    assert "stillhouse" in {experiment["name"] for experiment in experiments}


def test_a_person_logs_in_to_the_pages(stack: ComposeStack, browser: Any) -> None:
    page = browser.new_page()
    page.goto(stack.url("PREFECT"), wait_until="commit")
    password = page.locator("input[type=password]")
    password.fill(SECRETS["PREFECT_AUTH_STRING"])
    page.get_by_role("button", name="Login").click()
    password.wait_for(state="hidden")
    page.get_by_text("Dashboard").first.wait_for()


def test_no_secret_is_shown_by_inspect(stack: ComposeStack) -> None:
    for service in ("postgres", "redis", "server", "mlflow", "worker-cpu"):
        assert not set(stack.variables(service).values()) & set(SECRETS.values())
