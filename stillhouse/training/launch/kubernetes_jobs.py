"""A training as a Kubernetes job, by the official client."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from stillhouse.config import KubernetesConfig
from stillhouse.errors import ConfigError
from stillhouse.progress.state import Progress
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.attempt import Attempt
from stillhouse.training.launch.cluster import Standing, train_on_cluster
from stillhouse.training.launch.manifest import job_manifest
from stillhouse.training.launch.messages import TAIL_LINES
from stillhouse.training.launch.pods import cause, waits_for
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

_TIMEOUT_S: Final = 30
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_PASSING: Final = {408, 425, 429, 500, 502, 503, 504}
_REMEDIES: Final = {
    401: "Log in to the cluster again",
    403: "Whoever runs the flow needs a role that may create, get and delete jobs, list pods, and get pods/log",
}


def train_by_kubernetes(job: TrainJob, progress: Progress) -> JsonObject:
    """Trains in pods that see the store under the same path, as `runtime.kubernetes` says.

    Raises:
        ConfigError: the extra `kubernetes` is not installed, there is no cluster, or it refuses the job.
        TrainingError: the training failed; the message is that of the host that failed first, or of Kubernetes.
        TrainingKilled: something from outside ended it, an eviction for instance.
    """
    return train_on_cluster(job, progress, KubernetesJobs(job.runtime.kubernetes))


class KubernetesJobs:
    """Jobs of one namespace. See `ClusterJobs`.

    Args:
        config: names cluster and namespace.

    Raises:
        ConfigError: the extra `kubernetes` is not installed, or no cluster is configured.
    """

    def __init__(self, config: KubernetesConfig) -> None:
        self._namespace = config.namespace
        self._batch, self._core = _clients(config)

    def submit(self, attempt: Attempt, job: TrainJob) -> None:
        """See `ClusterJobs.submit`."""
        try:
            # Strict, so that a slip in the user's template is an error and not ignored.
            self._ask(
                self._batch.create_namespaced_job,
                self._namespace,
                job_manifest(attempt, job),
                field_validation="Strict",
                otherwise=_CONFLICT,
            )
        except ValidationError as error:  # the client knows the published shape of a job
            raise ConfigError(
                f"runtime.kubernetes.template {job.runtime.kubernetes.template}: what it makes is no Kubernetes job: "
                f"{error}"
            ) from error

    def standing(self, name: str) -> Standing:
        """See `ClusterJobs.standing`."""
        job = self._ask(self._batch.read_namespaced_job, name, self._namespace)
        if job is None:
            return Standing(True, f"the job is gone from namespace {self._namespace}: it was deleted", killed=True)
        pods = self._pods(name)
        known = cause(pods)
        conditions = {one.type: one for one in job.status.conditions or () if one.status == "True"}
        if job.metadata.deletion_timestamp is None and known is not None:
            return known
        if "Complete" in conditions:
            reason = "the job ended well, and nothing of it is in the store: do its pods mount the volume of the store?"
            return Standing(True, reason)
        if (failed := conditions.get("Failed")) is not None:
            return Standing(True, f"the job failed: {failed.reason}: {failed.message}")
        if "Suspended" in conditions:
            return Standing(False, "suspended: it waits in its queue")
        return Standing(False, waits_for(pods))

    def cancel(self, name: str) -> None:
        """See `ClusterJobs.cancel`."""
        # The job stays until its pods are gone, so that one can see when they are.
        self._ask(self._batch.delete_namespaced_job, name, self._namespace, propagation_policy="Foreground")

    def last_words(self, name: str) -> str:
        """See `ClusterJobs.last_words`."""
        words = []
        for pod in self._pods(name):
            log = self._ask(
                self._core.read_namespaced_pod_log, pod.metadata.name, self._namespace, tail_lines=TAIL_LINES
            )
            words += [f"{pod.metadata.name}: {line}" for line in (log or "").splitlines()]
        return "\n".join(words)

    def _pods(self, name: str) -> "list[V1Pod]":
        selector = f"batch.kubernetes.io/job-name={name}"
        return self._ask(self._core.list_namespaced_pod, self._namespace, label_selector=selector).items

    def _ask(self, call: Callable[..., Any], *args: Any, otherwise: int = _NOT_FOUND, **kwargs: Any) -> Any:
        """What the API server says; None for an answer of the status `otherwise`."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return call(*args, **kwargs, _request_timeout=_TIMEOUT_S)
        except ApiException as error:
            if error.status == otherwise:
                return None
            if error.status in _PASSING:
                raise ConnectionError(f"the API server says {error.status} {error.reason}") from error
            raise ConfigError(
                f"runtime.kubernetes: {call.__name__} in namespace {self._namespace}: the API server says "
                f"{error.status} {error.reason}: {error.body}. "
                + _REMEDIES.get(error.status, "Mend runtime.kubernetes or its template")
            ) from error
        except HTTPError as error:
            raise ConnectionError(f"the API server cannot be reached: {error}") from error


def _clients(config: KubernetesConfig) -> tuple[Any, Any]:
    """Clients of jobs and of pods."""
    try:
        from kubernetes.client import ApiClient, BatchV1Api, Configuration, CoreV1Api
        from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
    except ImportError as error:
        raise ConfigError(
            "runtime.launcher is `kubernetes`, but its client is not installed: pip install -e '.[kubernetes]', or set "
            "runtime.launcher to `subprocess`"
        ) from error
    settings = Configuration()
    try:
        if config.context is None and "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
            load_incluster_config(settings)
        else:
            load_kube_config(os.environ.get("KUBECONFIG"), config.context, settings)
    except ConfigException as error:
        raise ConfigError(
            f"runtime.kubernetes.context {config.context!r}: no cluster is configured: {error}"
        ) from error
    # The caller looks again anyway, and says what it waits for.
    settings.retries = False
    client = ApiClient(settings)
    return BatchV1Api(client), CoreV1Api(client)
