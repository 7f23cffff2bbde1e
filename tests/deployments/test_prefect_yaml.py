"""The promises of `prefect.yaml`, read without a server."""

import asyncio
from datetime import date, datetime, time, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from prefect.client.schemas.schedules import CronSchedule
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.server.schemas.schedules import CronSchedule as ServerCronSchedule
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate
from prefect.utilities.templating import find_placeholders

from stillhouse.config import load_config, parse_config
from stillhouse.errors import ConfigError
from tasks.server.deploying import read_configs
from tests.deployments.prefect_file import read_deployments

ROOT = Path(__file__).resolve().parents[2]
PREFECT_FILE = ROOT / "deployments" / "prefect.yaml"
ENTRIES = read_deployments(PREFECT_FILE, ROOT)
WITH_CONFIG = [entry for entry in ENTRIES if entry["entrypoint"] != "flows.run_stage.run_stage"]
FLOW_FILES = {path.stem for path in (ROOT / "flows").glob("*.py")} - {"__init__", "cli"}


def _id(entry: dict[str, Any]) -> str:
    return f"{entry['entrypoint'].rpartition('.')[2]}/{entry['name']}"


def _config(entry: dict[str, Any]) -> str:
    name: str = entry["name"]
    return name.removesuffix(f"-{_flow(entry['entrypoint']).name}")


@cache
def _flow(entrypoint: str) -> Flow[..., Any]:
    # Prefect itself would deploy a placeholder for a flow that cannot be imported, and say nothing.
    return load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)


@cache
def _form(entrypoint: str) -> dict[str, Any]:
    return parameter_schema(_flow(entrypoint)).model_dump_for_openapi()


def test_every_flow_and_every_shipped_config_is_deployed() -> None:
    assert {entry["entrypoint"] for entry in ENTRIES} == {f"flows.{stem}.{stem}" for stem in FLOW_FILES}
    assert {_config(entry) for entry in WITH_CONFIG} == {path.stem for path in (ROOT / "configs").rglob("*.yaml")}
    assert all(_flow(entry["entrypoint"]).fn.__module__ in entry["entrypoint"] for entry in ENTRIES)


def test_each_deployment_has_a_name_of_its_own_and_says_what_it_needs() -> None:
    names = [entry["name"] for entry in ENTRIES]
    assert len(names) == len(set(names))
    said = [entry["description"] for entry in ENTRIES]
    assert len(said) == len(set(said))
    for entry in WITH_CONFIG:
        assert ("paid" in entry["tags"]) == ("_API_KEY" in entry["description"])
        assert ("embedded" in entry["tags"]) == ("No key, no GPU." in entry["description"])


@pytest.mark.parametrize("day", [date(2027, 3, 28), date(2027, 10, 31)], ids=["to-summer-time", "to-winter-time"])
def test_a_schedule_runs_once_and_at_its_time_on_the_day_the_clocks_change(day: date) -> None:
    start = datetime.combine(day, time(), ZoneInfo("Europe/Berlin"))
    for minute, hour in {tuple(each["cron"].split()[:2]) for entry in ENTRIES for each in entry.get("schedules", ())}:
        schedule = ServerCronSchedule(cron=f"{minute} {hour} * * *", timezone="Europe/Berlin")
        dates = asyncio.run(schedule.get_dates(n=9, start=start, end=start + timedelta(days=1, seconds=-1)))
        assert [(found.hour, found.minute) for found in dates] == [(int(hour), int(minute))]


@pytest.mark.parametrize("entry", WITH_CONFIG, ids=_id)
def test_a_deployment_runs_the_config_of_its_name_and_its_form_takes_it(entry: dict[str, Any]) -> None:
    given = entry["parameters"]["config"]
    (path,) = (ROOT / "configs").rglob(f"{_config(entry)}.yaml")
    overrides = []
    if deployment := given["runtime"].get("training_deployment"):
        assert deployment in {"run-stage/gpu"}
        overrides = [f"runtime.training_deployment={deployment}"]
    assert parse_config(given, origin=str(path)) == load_config(path, overrides)
    # As the server looks at the parameters of a deployment: without filling in that a field may be null.
    form = _form(entry["entrypoint"])
    assert list(validate(entry["parameters"], form, raise_on_error=False, preprocess=False)) == []


@pytest.mark.parametrize("entry", WITH_CONFIG, ids=_id)
def test_a_deployment_has_a_pool_a_say_when_two_runs_collide_and_schedules_that_cost_nothing_unasked(
    entry: dict[str, Any],
) -> None:
    assert entry["work_pool"]["name"] in {"cpu", "gpu"}
    assert entry["concurrency_limit"]["limit"] == 1
    assert entry["concurrency_limit"]["collision_strategy"] in {"ENQUEUE", "CANCEL_NEW"}
    config = entry["parameters"]["config"]
    is_embedded = all(config[part]["model"].startswith("embedded:") for part in ("student", "teacher"))
    assert ("embedded" in entry["tags"]) == is_embedded
    for schedule in entry.get("schedules", ()):
        assert CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"]).timezone != "UTC"
        assert schedule["slug"] in {"nightly", "weekly"}
        assert is_embedded or schedule["active"] is False


def test_every_placeholder_is_filled() -> None:
    written = yaml.safe_load(PREFECT_FILE.read_text())["deployments"]
    placeholders = {found.full_match for entry in written for found in find_placeholders(entry)}
    assert placeholders
    # A config may hold some of its own, such as the hint of self_distillation.
    assert not placeholders & {found.full_match for entry in ENTRIES for found in find_placeholders(entry)}
    assert [set(entry) for entry in ENTRIES] == [set(entry) for entry in written]


def test_two_configs_of_one_stem_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"a/same\.yaml, .*b/same\.yaml"):
        read_configs(str(tmp_path))


def test_a_folder_without_configs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="configs"):
        read_configs(str(tmp_path))
