"""What the pods of a job tell of its end, or of what keeps it from starting."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from stillhouse.training.launch.cluster import Standing

if TYPE_CHECKING:
    from kubernetes.client import V1ContainerStatus, V1Pod

_NEVER_STARTS: Final = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
}
"""Reasons to wait that waiting does not mend: the image, a secret or a volume has to be put right."""
_KILLED: Final = 137
"""Exit code of a container ended by SIGKILL."""


def cause(pods: Iterable["V1Pod"]) -> Standing | None:
    """Why the job ended or cannot go on, where Kubernetes did it; None where it did not."""
    for pod in pods:
        for known in (_disruption(pod), *(_container_cause(pod, status) for status in _containers(pod))):
            if known is not None:
                return known
    return None


def waits_for(pods: Iterable["V1Pod"]) -> str:
    """What the first pod that does not run yet waits for; empty where all run."""
    for pod in pods:
        for condition in pod.status.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                return f"pod {pod.metadata.name} is not scheduled: {condition.message or condition.reason}"
        for status in _containers(pod):
            if status.state and status.state.waiting:
                return f"pod {pod.metadata.name} waits: {_told(status.state.waiting)}"
    return ""


def _disruption(pod: "V1Pod") -> Standing | None:
    """Eviction, preemption, or a node that was drained or lost."""
    for condition in pod.status.conditions or ():
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return _killed(f"pod {pod.metadata.name} was taken away: {_told(condition)}")
    if pod.status.reason in ("Evicted", "Preempting", "NodeLost", "NodeShutdown", "Terminated"):
        return _killed(f"pod {pod.metadata.name} was taken away: {_told(pod.status)}")
    return None


def _container_cause(pod: "V1Pod", status: "V1ContainerStatus") -> Standing | None:
    if status.state and (waiting := status.state.waiting) and waiting.reason in _NEVER_STARTS:
        # The job does not end by itself: whoever hears of it ends it.
        return Standing(True, f"pod {pod.metadata.name} cannot start: {_told(waiting)}", is_cause=True)
    ended = status.state and status.state.terminated
    if not ended:
        return None
    if ended.reason == "OOMKilled":
        # It would come back: the limit stays what it is.
        return Standing(
            True,
            f"pod {pod.metadata.name} used more memory than its limit (OOMKilled): raise runtime.kubernetes.memory_gib "
            "or lower microbatch_tokens",
            is_cause=True,
        )
    if ended.exit_code == _KILLED:
        return _killed(f"pod {pod.metadata.name} was killed by SIGKILL: {_told(ended)}")
    return None


def _killed(reason: str) -> Standing:
    return Standing(True, reason, killed=True, is_cause=True)


def _containers(pod: "V1Pod") -> Iterator["V1ContainerStatus"]:
    yield from pod.status.init_container_statuses or ()
    yield from pod.status.container_statuses or ()


def _told(what: object) -> str:
    """The reason and the message of a condition or state."""
    reason, message = getattr(what, "reason", None), getattr(what, "message", None)
    return ": ".join(filter(None, (reason, message))) or "no reason is given"
