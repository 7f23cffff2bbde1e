from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from deployments.deploy import select
from deployments.merging import merge, take
from deployments.prefect_file import Entry, read_entries
from stillhouse.errors import ConfigError

NIGHT = {"active": False, "schedule": {"cron": "30 3 * * *"}, "slug": "nightly", "parameters": {}}
FILE: dict[str, Any] = {
    "description": "a",
    "paused": False,
    "job_variables": {},
    "schedules": {"nightly": NIGHT},
    "parameters": {"config": {"rollouts": {"num_samples": 1}, "sft": {"num_epochs": 1}}},
}


def changed(values: dict[str, Any], *key: str, to: Any) -> dict[str, Any]:
    values = deepcopy(values)
    part = values
    for name in key[:-1]:
        part = part[name]
    part[key[-1]] = to
    return values


def test_nothing_is_said_where_nothing_was_changed() -> None:
    merged = merge(FILE, FILE, FILE)
    assert (merged.values, list(merged.told())) == (FILE, [])


def test_the_page_keeps_what_was_changed_there_and_the_file_gives_all_else() -> None:
    page = changed(FILE, "parameters", "config", "rollouts", "num_samples", to=4)
    file = changed(FILE, "parameters", "config", "sft", "num_epochs", to=2)
    merged = merge(FILE, page, changed(file, "parameters", "config", "new", to={"key": 1}))
    assert merged.values["parameters"]["config"] == {
        "rollouts": {"num_samples": 4},
        "sft": {"num_epochs": 2},
        "new": {"key": 1},
    }
    assert merged.kept == ["rollouts.num_samples = 4 (file: 1)"]
    assert merged.taken == ["sft.num_epochs = 2 (was 1)"]


def test_switches_and_schedules_of_the_page_stay_and_what_was_deleted_there_does_not_come_back() -> None:
    added = {"active": True, "schedule": {"interval": 3600.0}, "slug": None, "parameters": {}}
    switched = changed(changed(FILE, "schedules", "nightly", "active", to=True), "schedules", "added-1", to=added)
    paused = changed(switched, "paused", to=True)
    assert merge(FILE, paused, FILE).values == paused
    deleted = changed(FILE, "schedules", to={})
    assert merge(FILE, deleted, FILE).values == deleted
    # Of a schedule that is no longer in the file nothing stays.
    assert merge(FILE, FILE, deleted).values == deleted


def test_of_a_deployment_of_unknown_origin_switches_and_added_schedules_stay_and_all_else_is_named() -> None:
    page = changed(changed(FILE, "schedules", "nightly", "active", to=True), "schedules", "added-1", to=NIGHT)
    page = changed(page, "parameters", "config", "rollouts", "num_samples", to=4)
    merged = merge(None, page, FILE)
    assert merged.values == changed(page, "parameters", "config", "rollouts", "num_samples", to=1)
    assert merged.taken == ["rollouts.num_samples = 1 (was 4)"]
    assert merged.kept[0] == "schedules.nightly.active = true (file: false)"


def test_a_reset_takes_the_file_and_says_what_was_there() -> None:
    page = changed(FILE, "schedules", "nightly", "active", to=True)
    merged = take(page, FILE)
    assert (merged.values, merged.taken) == (FILE, ["schedules.nightly.active = false (was true)"])


def test_a_variable_of_the_job_is_named_and_not_shown() -> None:
    page = changed(FILE, "job_variables", to={"env": {"API_KEY": "sk-secret"}})
    merged = merge(FILE, page, FILE)
    assert merged.kept == ["job_variables.env = *** (file: not set)"]


def test_a_config_selects_its_deployments_and_those_that_take_stages_over() -> None:
    entries = read_entries()
    chosen = {entry.name for entry in select(entries, ["nightly"])}
    assert chosen == {"gpu", "cpu", "nightly-distill"}
    assert select(entries, ["all"]) == entries
    with pytest.raises(ConfigError, match="did you mean nightly"):
        select(entries, ["nigthly"])


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{name: mine, entrypoint: flows.distill.distill, work_pool: {name: cpu}, triggers: []}", "'triggers'"),
        ("{name: mine, entrypoint: flows.distill.distill}", "'work_pool'"),
        ('{name: mine, entrypoint: e, work_pool: {}, parameters: {config: "{{ confg.mine }}"}}', "'confg'"),
        ("[", "not valid YAML"),
    ],
)
def test_a_file_that_cannot_be_deployed_as_it_is_written_is_refused(tmp_path: Path, entry: str, said: str) -> None:
    path = tmp_path / "prefect.yaml"
    path.write_text(f"build: []\ndeployments:\n- {entry}\n")
    with pytest.raises(ConfigError, match=said):
        read_entries(path)


@pytest.mark.parametrize(
    ("schedule", "said"), [({"slug": "a", "cron": "61 * * * *"}, "61"), ({"cron": "* * * * *"}, "slug")]
)
def test_a_schedule_that_is_wrong_is_refused(schedule: dict[str, str], said: str) -> None:
    body = {"name": "mine", "entrypoint": "e", "work_pool": {"name": "cpu"}, "schedules": [schedule]}
    with pytest.raises(ConfigError, match=said):
        Entry(body, {}).values()
