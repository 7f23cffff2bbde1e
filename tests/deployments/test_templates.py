"""Job templates as Prefect fills them, read strictly by what takes them."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from docker.types import DeviceRequest
from kubernetes import client as kubernetes
from prefect.utilities.schema_tools.validation import is_valid_schema, validate
from prefect.utilities.templating import apply_values, find_placeholders

ROOT = Path(__file__).resolve().parents[2]
CASES = [(kind, pool) for kind in ("process", "docker", "kubernetes") for pool in ("cpu", "gpu")]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "deployments" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


POOLS = _load("pools")


def _filled(kind: str, pool: str, **job_variables: Any) -> dict[str, Any]:
    """Return the job configuration of a run, as a worker makes it of template, defaults and job variables."""
    template = POOLS.job_template(kind, pool)
    variables = template["variables"]
    given = {name: field["default"] for name, field in variables["properties"].items() if "default" in field}
    given |= {"name": "curious-crab", "command": "prefect flow-run execute", **job_variables}
    assert list(validate(given, variables, raise_on_error=False)) == []
    filled: dict[str, Any] = apply_values(template["job_configuration"], given)
    return filled


def _unknown_fields(body: Any, kind: str, path: str) -> list[str]:
    """Return fields that the API's own model of `kind` does not have, by their paths."""
    if kind.startswith("list["):
        return [line for n, item in enumerate(body) for line in _unknown_fields(item, kind[5:-1], f"{path}[{n}]")]
    model = getattr(kubernetes, kind, None)
    if model is None:
        return []
    names = {json: python for python, json in model.attribute_map.items()}
    found = [f"{path}.{key}" for key in body if key not in names]
    for key in body.keys() & names.keys():
        found += _unknown_fields(body[key], model.openapi_types[names[key]], f"{path}.{key}")
    return found


@pytest.mark.parametrize(("kind", "pool"), CASES)
def test_every_placeholder_is_a_variable_with_title_and_description(kind: str, pool: str) -> None:
    template = POOLS.job_template(kind, pool)
    is_valid_schema(template["variables"])
    fields = template["variables"]["properties"]
    assert {found.name for found in find_placeholders(template["job_configuration"])} == set(fields)
    assert all(field["title"] and field["description"] for field in fields.values())


@pytest.mark.parametrize("pool", ["cpu", "gpu"])
def test_a_job_has_only_fields_that_kubernetes_knows(pool: str) -> None:
    manifest = _filled("kubernetes", pool, env={}, labels={"team": "a"})["job_manifest"]
    # Prefect's worker writes variables as a list of names and values.
    manifest["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    manifest["spec"]["template"]["spec"]["containers"][0]["args"] = ["prefect", "flow-run", "execute"]
    assert _unknown_fields(manifest, "V1Job", "job") == []
    manifest["spec"]["template"]["spec"]["tolerances"] = []
    assert _unknown_fields(manifest, "V1Job", "job") == ["job.spec.template.spec.tolerances"]


def test_a_pod_of_the_gpu_pool_gets_its_gpus_memory_nodes_and_secrets() -> None:
    chosen = {"gpus": 8, "node_selector": {"gpu": "h200"}, "shared_memory": "64Gi", "secret": "keys", "claim": "store"}
    pod = _filled("kubernetes", "gpu", **chosen)["job_manifest"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert container["envFrom"] == [{"secretRef": {"name": "keys", "optional": True}}]
    assert pod["nodeSelector"] == {"gpu": "h200"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/app/runs", "/dev/shm"}
    runs, shared_memory = pod["volumes"]
    assert runs["persistentVolumeClaim"] == {"claimName": "store"}
    assert shared_memory["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert _filled("kubernetes", "cpu")["job_manifest"]["spec"]["template"]["spec"]["tolerations"] == []


def test_a_pod_runs_as_nobody_special_and_its_entrypoint_stays() -> None:
    pod = _filled("kubernetes", "gpu")["job_manifest"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    # The image's entrypoint sets the defaults of tasks/server/environment.py.
    assert "command" not in container


def test_a_container_of_the_gpu_pool_gets_every_gpu_and_one_of_the_cpu_pool_none() -> None:
    (wanted,) = _filled("docker", "gpu")["container_create_kwargs"]["device_requests"]
    assert DeviceRequest(**wanted)["Capabilities"] == [["gpu"]]
    assert _filled("docker", "gpu")["container_create_kwargs"]["shm_size"] == "16g"
    assert _filled("docker", "cpu")["container_create_kwargs"]["device_requests"] == []
