"""What the compose file promises, without Docker."""

import json
import re
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import pytest

Compose = dict[str, Any]
# Read by programs that are no part of this project's environment, under these documented names.
FOREIGN = {
    "postgres": {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "POSTGRES_PASSWORD_FILE"},
    "redis": {"REDIS_PASSWORD"},
    "teacher": {"HF_HOME", "HF_TOKEN", "VLLM_NO_USAGE_STATS", "VLLM_API_KEY", "DO_NOT_TRACK"},
}


def _targets(service: Compose) -> set[str]:
    return {secret if isinstance(secret, str) else secret["target"] for secret in service.get("secrets", [])}


def _sources(service: Compose) -> set[str]:
    return {secret if isinstance(secret, str) else secret["source"] for secret in service.get("secrets", [])}


def test_the_file_is_of_the_compose_specification(compose: Compose) -> None:
    schema = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(compose, json.loads(schema.read_text(encoding="utf-8")))


def test_every_name_that_is_referred_to_is_defined(compose: Compose, root: Path) -> None:
    services = compose["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert _sources(service) <= set(compose["secrets"]), name
        assert set(service["networks"]) <= set(compose["networks"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (root / "deployments" / source).is_file(), f"{name}: {volume}"
    assert {source for service in services.values() for source in _sources(service)} == set(compose["secrets"])


def test_a_service_waits_for_a_state_that_the_other_reaches(compose: Compose) -> None:
    for name, service in compose["services"].items():
        for other, condition in service.get("depends_on", {}).items():
            checked = compose["services"][other].get("healthcheck", {})
            if condition["condition"] == "service_healthy":
                asks = "HEALTH_URL" in compose["services"][other].get("environment", {}) or "test" in checked
                assert asks, f"{name} waits for {other}, which nothing asks"
                assert not checked.get("disable"), f"{name} waits for {other}, whose check is off"


def test_images_are_named_by_release(compose: Compose, stages: dict[str, object]) -> None:
    for name, service in compose["services"].items():
        image, _, tag = service["image"].rpartition(":")
        if "build" in service:
            assert (image, tag) == ("stillhouse", service["build"]["target"])
            assert tag in stages
        else:
            assert re.fullmatch(r"v?\d+(\.\d+)+(-[\w.]+)?", tag), name


def test_what_is_published_is_published_on_loopback_by_default(compose: Compose) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(published) == 2
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_workers_and_teacher_reach_no_database(compose: Compose) -> None:
    assert compose["networks"]["data"]["internal"] is True
    on_data = {name for name, service in compose["services"].items() if "data" in service["networks"]}
    assert on_data == {"postgres", "redis", "migrate", "server", "services", "mlflow"}


def test_every_variable_is_one_that_its_program_reads(compose: Compose, root: Path, known_variables: set[str]) -> None:
    for name, service in compose["services"].items():
        given = set(service.get("environment", {})) | _targets(service)
        assert given <= known_variables | FOREIGN.get(name, set()), name


def test_no_secret_stands_in_the_file(compose: Compose, root: Path) -> None:
    text = (root / "deployments" / "compose.yaml").read_text(encoding="utf-8")
    for service in compose["services"].values():
        for name in service.get("environment", {}):
            assert not re.search(r"PASSWORD$|SECRET|AUTH_STRING|TOKEN$|API_KEY$", name), name
    # A value substituted into the file would show in `docker inspect`; as a secret it is a file.
    for secret in compose["secrets"]:
        assert f"${{{secret}" not in text, secret


def test_the_example_names_every_secret_and_every_setting_with_its_default(compose: Compose, root: Path) -> None:
    example = (root / "deployments" / ".env.example").read_text(encoding="utf-8")
    secrets = dict(re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE))
    assert set(secrets) == set(compose["secrets"])
    # No password is shipped that somebody would forget to change.
    assert {name for name, value in secrets.items() if value} == {"REDIS_URL"}
    settings = dict(re.findall(r"^#(\w+)=(.*)$", example, re.MULTILINE))
    text = (root / "deployments" / "compose.yaml").read_text(encoding="utf-8")
    assert settings == dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text))


def test_work_that_is_told_to_stop_has_time_for_a_checkpoint(compose: Compose) -> None:
    for worker in ("worker-cpu", "worker-gpu"):
        assert compose["services"][worker]["stop_grace_period"] == "2m"


@pytest.mark.parametrize("profile", ["gpu", "teacher"])
def test_services_of_a_profile_ask_for_devices(compose: Compose, profile: str) -> None:
    for service in compose["services"].values():
        if service.get("profiles") == [profile]:
            (device,) = service["deploy"]["resources"]["reservations"]["devices"]
            assert device["capabilities"] == ["gpu"]
