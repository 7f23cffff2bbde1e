"""What a person sets on Prefect's pages, and `make deploy` after it, on a real server."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from deployments.deploy import main
from tests.deployments.processes import ROOT, Prefect, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

NIGHTLY = "distill/nightly-distill"
EVERY_HOUR = {"schedule": {"interval": 3600}, "active": True}


class Project:
    """A project's folder, deployed to a server of its own."""

    def __init__(self, folder: Path, prefect: Prefect, output: pytest.CaptureFixture[str]) -> None:
        self.prefect, self.output = prefect, output
        self.configs = Path(shutil.copytree(ROOT / "configs", folder / "configs"))

    def edit(self, config: str, before: str, after: str) -> None:
        path = self.configs / f"{config}.yaml"
        text = path.read_text(encoding="utf-8")
        assert before in text
        path.write_text(text.replace(before, after), encoding="utf-8")

    def deploy(self, *arguments: str, code: int = 0, url: str = "", login: str = "") -> str:
        """Return what is said of all but the deployments `gpu` and `cpu`."""
        settings = {PREFECT_API_URL: url or self.prefect.api, PREFECT_API_AUTH_STRING: login or self.prefect.login}
        self.output.readouterr()
        with temporary_settings(settings), pytest.raises(SystemExit) as ended:
            main(arguments)
        # A text for a code is what Python prints.
        said = [*self.output.readouterr(), ended.value.code if isinstance(ended.value.code, str) else ""]
        assert bool(ended.value.code) == bool(code), said
        return "\n".join(line for line in "".join(said).splitlines() if not line.startswith("run-stage/"))

    def known(self, name: str) -> Any:
        return self.prefect.get(f"deployments/name/{name}")

    def set(self, name: str, method: str, path: str = "", body: Any = None) -> None:
        """Do what a page does when a person saves a deployment, or a schedule of it."""
        url = f"{self.prefect.api}/deployments/{self.known(name)['id']}{path}"
        httpx.request(method, url, json=body, auth=self.prefect.auth, timeout=60).raise_for_status()

    def remember(self, flow: str, name: str, **values: Any) -> None:
        """Have a deployment on the server that an earlier version made."""
        flow_id = self.prefect.post("flows/", {"name": flow})["id"]
        self.prefect.post("deployments/", {"flow_id": flow_id, "name": name, "work_pool_name": "cpu", **values})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    with Prefect(tmp_path_factory.mktemp("prefect"), PREFECT_SERVER_UI_ENABLED="false") as prefect:
        prefect.tool("python", "deployments/pools.py")
        yield prefect


@pytest.fixture
def project(
    server: Prefect, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, server, capsys)


def test_what_was_set_on_the_page_stays_beside_a_config_that_changed_until_it_is_reset(project: Project) -> None:
    assert project.deploy("nightly") == f"{NIGHTLY}: created"
    before = project.known(NIGHTLY)
    (schedule,) = before["schedules"]
    project.set(NIGHTLY, "PATCH", f"/schedules/{schedule['id']}", {"active": True})
    project.set(NIGHTLY, "POST", "/schedules", [EVERY_HOUR])
    config = before["parameters"]["config"]
    # The page writes fields that it does not show with their defaults, too.
    edited = {
        **config,
        "rollouts": {**config["rollouts"], "num_samples": 4},
        "teacher": {**config["teacher"], "client": "auto"},
    }
    project.set(NIGHTLY, "PATCH", "", {"parameters": {"config": edited}, "tags": ["ours"], "concurrency_limit": 3})
    project.edit("nightly", "num_epochs: 1", "num_epochs: 2")

    said = project.deploy("nightly")
    assert said.startswith(
        f"{NIGHTLY}: updated; taken from the files: sft.num_epochs = 2 (was 1); kept from the page: "
    )
    for kept in ("num_samples = 4 (file: 1)", 'tags = ["ours"]', "concurrency_limit = 3", "added-", "nightly.active ="):
        assert kept in said
    assert "client" not in said
    after = project.known(NIGHTLY)
    changed = after["parameters"]["config"]
    assert (changed["rollouts"]["num_samples"], changed["sft"]["num_epochs"]) == (4, 2)
    assert (after["tags"], after["global_concurrency_limit"]["limit"]) == (["ours"], 3)
    # By their ids the server knows the runs that it has already planned.
    assert {each["id"] for each in after["schedules"]} > {schedule["id"]}
    assert [each["active"] for each in after["schedules"]] == [True, True]
    assert project.deploy("nightly").startswith(f"{NIGHTLY}: unchanged; kept from the page: ")
    assert project.known(NIGHTLY)["updated"] == after["updated"]

    assert "rollouts.num_samples = 1 (was 4)" in project.deploy("nightly", "--reset")
    (schedule,) = project.known(NIGHTLY)["schedules"]
    assert schedule["active"] is False
    assert project.deploy("nightly") == f"{NIGHTLY}: unchanged"


def test_a_deployment_takes_the_place_of_the_one_that_had_the_name_of_its_config(project: Project) -> None:
    schedule = {"slug": "nightly", "schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berlin"}, "active": True}
    project.remember("distill", "openrouter_sft", tags=["old"], schedules=[schedule])
    project.set("distill/openrouter_sft", "POST", "/create_flow_run", {"name": "by-hand"})
    refused = project.deploy("openrouter_sft", code=1)
    assert "its run by-hand is not over" in refused
    assert project.known("distill/openrouter_sft")["schedules"]

    (run,) = project.prefect.post("flow_runs/filter", {"flow_runs": {"name": {"any_": ["by-hand"]}}})
    project.prefect.post(f"flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLED"}, "force": True})
    said = project.deploy("openrouter_sft")
    assert "distill/openrouter_sft-distill: created; takes the place of distill/openrouter_sft; " in said
    assert 'tags = ["paid"] (was ["old"])' in said
    (known,) = project.known("distill/openrouter_sft-distill")["schedules"]
    assert (known["schedule"]["cron"], known["active"]) == ("30 3 * * *", True)
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        project.known("distill/openrouter_sft")


def test_a_wrong_config_stops_its_own_deployments_with_one_line(project: Project) -> None:
    project.edit("smoke", "max_prompts: 48", "max_prompts: none")
    lines = project.deploy("smoke", "sft_multi_gpu", code=1).splitlines()
    assert lines[0] == "train-sft/sft_multi_gpu-train-sft: created"
    (line,) = lines[1:]
    assert line.startswith("configs/smoke.yaml: prompts.max_prompts = 'none': expected ")
    assert line.endswith(
        "(not deployed: smoke-distill, smoke-generate, smoke-train-sft, smoke-train-on-policy, smoke-evaluate-models)"
    )


def test_a_server_that_is_away_or_refuses_the_login_is_one_line(project: Project) -> None:
    away = project.deploy("nightly", code=1, url=f"http://127.0.0.1:{free_port()}/api")
    assert away.splitlines() == [away]
    assert "make server" in away
    refused = project.deploy("nightly", code=1, login="stillhouse:wrong")
    assert refused.splitlines() == [refused]
    assert "PREFECT_API_AUTH_STRING" in refused
