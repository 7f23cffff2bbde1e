"""The manifest of the Kubernetes job that trains: one pod a host, as an indexed job."""

from pathlib import Path
from typing import Any, Final

import yaml

from stillhouse.config import KubernetesConfig
from stillhouse.errors import ConfigError
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.attempt import Attempt
from stillhouse.training.launch.cluster import gpus_of
from stillhouse.training.launch.messages import GRACE_S, LEAVE_S
from stillhouse.types import JsonObject

CONTAINER: Final = "training"
_KEPT_S: Final = 24 * 3600
"""How long a job that is over can be looked at before Kubernetes removes it."""


def job_manifest(attempt: Attempt, job: TrainJob) -> JsonObject:
    """The `batch/v1` job of an attempt.

    Raises:
        ConfigError: no image is named, or the pod template cannot be read.
    """
    config, num_hosts = job.runtime.kubernetes, job.runtime.num_hosts
    labels = {"app.kubernetes.io/name": "stillhouse", "app.kubernetes.io/component": CONTAINER}
    queue = {} if config.queue is None else {"kueue.x-k8s.io/queue-name": config.queue}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": attempt.name,
            "labels": {**labels, **queue},
            "annotations": {"stillhouse/attempt": str(attempt.folder)},
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": num_hosts,
            "parallelism": num_hosts,
            # One host cannot go on without the others; the flow tries again, with a job that meets anew.
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": _pod(attempt, job, labels),
        },
    }


def _pod(attempt: Attempt, job: TrainJob, labels: dict[str, str]) -> JsonObject:
    config = job.runtime.kubernetes
    pod = _template(config)
    metadata, spec = pod.setdefault("metadata", {}), pod.setdefault("spec", {})
    metadata["labels"] = {**metadata.get("labels", {}), **labels}
    containers = spec.setdefault("containers", [{}])
    _fill(containers[0], attempt, job)
    spec["restartPolicy"] = "Never"
    spec["terminationGracePeriodSeconds"] = round(GRACE_S + LEAVE_S)
    # The first process of a container ignores SIGTERM until it says otherwise, which takes it the imports of torch.
    spec["shareProcessNamespace"] = True
    volumes = spec.setdefault("volumes", [])
    shared_memory = {"medium": "Memory", "sizeLimit": _gibibytes(config.shared_memory_gib)}
    volumes.append({"name": "stillhouse-shared-memory", "emptyDir": shared_memory})
    if config.claim is not None:
        volumes.append({"name": "stillhouse-store", "persistentVolumeClaim": {"claimName": config.claim}})
    return pod


def _fill(container: JsonObject, attempt: Attempt, job: TrainJob) -> None:
    """Makes the first container of the template the training's."""
    config = job.runtime.kubernetes
    image = config.image or container.get("image")
    if image is None:
        raise ConfigError(
            "runtime.kubernetes.image is not set, nor does the first container of runtime.kubernetes.template name an "
            "image; expected one with Stillhouse in it"
        )
    address = {"name": "STILLHOUSE_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    command = ["python", "-m", "stillhouse.training.launch.host", str(attempt.folder)]
    container |= {
        "name": container.get("name", CONTAINER),
        "image": image,
        # Kubernetes puts the variables in; of an indexed job each pod has its number in one.
        "command": [*command, "--host", "$(JOB_COMPLETION_INDEX)", "--address", "$(STILLHOUSE_POD_IP)"],
        # Relative paths of the config mean there what they mean here.
        "workingDir": str(Path.cwd()),
        "env": [*container.get("env", ()), address],
    }
    if config.secret is not None:
        container["envFrom"] = [*container.get("envFrom", ()), {"secretRef": {"name": config.secret}}]
    mounts = container.setdefault("volumeMounts", [])
    mounts.append({"name": "stillhouse-shared-memory", "mountPath": "/dev/shm"})
    if config.claim is not None:
        path = config.mount_path or str(Path(job.runtime.store).absolute())
        mounts.append({"name": "stillhouse-store", "mountPath": path})
    _ask_for_resources(container, job)


def _ask_for_resources(container: JsonObject, job: TrainJob) -> None:
    config = job.runtime.kubernetes
    resources = container.setdefault("resources", {})
    requests, limits = resources.setdefault("requests", {}), resources.setdefault("limits", {})
    if config.cpus is not None:
        requests["cpu"] = f"{round(1000 * config.cpus)}m"
    if config.memory_gib is not None:
        requests["memory"] = limits["memory"] = _gibibytes(config.memory_gib)
    if gpus := gpus_of(job.runtime):
        limits[config.gpu_resource] = str(gpus)


def _template(config: KubernetesConfig) -> JsonObject:
    if config.template is None:
        return {}
    try:
        template: Any = yaml.safe_load(Path(config.template).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"runtime.kubernetes.template {config.template}: cannot be read: {error}") from error
    if not isinstance(template, dict) or not template.keys() <= {"metadata", "spec"}:
        found = sorted(map(str, template)) if isinstance(template, dict) else type(template).__name__
        raise ConfigError(
            f"runtime.kubernetes.template {config.template}: expected the keys `metadata` and `spec` of a pod "
            f"template, found {found}"
        )
    return template


def _gibibytes(amount: float) -> str:
    return f"{round(1024 * amount)}Mi"
