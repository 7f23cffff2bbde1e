"""Jobs of which nobody trains: what is said of them while they wait, and when they end."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.training.job import TrainJob
from stillhouse.training.launch.attempt import Attempt, begin_attempt
from stillhouse.training.launch.kubernetes_jobs import KubernetesJobs

Json = dict[str, Any]
NewJob = Callable[..., TrainJob]
Submitted = tuple[KubernetesJobs, Attempt]


@pytest.fixture
def submitted(cluster_job: NewJob, api: Any) -> Submitted:
    """A job whose pods wait to be told what becomes of them."""
    job = cluster_job()
    jobs, attempt = KubernetesJobs(job.runtime.kubernetes), begin_attempt(job)
    # Two hosts of which one never comes: the pod waits for it.
    body = json.loads(attempt.job_file.read_bytes())
    body["runtime"] |= {"num_hosts": 2}
    attempt.job_file.write_text(json.dumps(body))
    jobs.submit(attempt, job)
    return jobs, attempt


def container(state: str, **about: Any) -> Json:
    status = {"name": "training", "ready": False, "restartCount": 0, "image": "i", "imageID": "i"}
    return {"containerStatuses": [status | {"state": {state: about}}]}


def condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


def test_a_job_runs_until_it_is_cancelled_and_is_over_when_its_pods_are_gone(submitted: Submitted, api: Any) -> None:
    jobs, attempt = submitted
    assert not jobs.standing(attempt.name).is_over
    jobs.cancel(attempt.name)
    (pod,) = api.pods[attempt.name]
    pod.process.wait(60)
    standing = jobs.standing(attempt.name)
    assert standing.is_over
    assert "it was deleted" in standing.reason
    # One that is gone already is as good as cancelled.
    jobs.cancel(attempt.name)


def test_a_job_submitted_twice_is_one_job(submitted: Submitted, cluster_job: NewJob, api: Any) -> None:
    jobs, attempt = submitted
    jobs.submit(attempt, cluster_job())
    assert api.num_created == 1


@pytest.mark.parametrize(
    ("told", "killed", "expected"),
    [
        (
            container("terminated", reason="OOMKilled", exitCode=137),
            False,
            r"more memory than its limit \(OOMKilled\).*microbatch_tokens",
        ),
        (container("terminated", reason="Error", exitCode=137), True, "was killed by SIGKILL"),
        ({"reason": "Evicted", "message": "node was low on memory"}, True, "taken away: Evicted: node was low"),
        (condition("DisruptionTarget", "True", "PreemptionByScheduler", "for a better one"), True, "taken away: Preem"),
        (
            container("waiting", reason="ImagePullBackOff", message="no such image"),
            False,
            "cannot start: ImagePullBackOff: no such image",
        ),
    ],
)
def test_what_kubernetes_did_to_a_pod_is_the_cause(
    submitted: Submitted, api: Any, told: Json, killed: bool, expected: str
) -> None:
    jobs, attempt = submitted
    api.pods[attempt.name][0].told = told
    standing = jobs.standing(attempt.name)
    assert (standing.is_over, standing.is_cause, standing.killed) == (True, True, killed)
    assert re.search(expected, standing.reason)


def test_what_a_pod_waits_for_is_told(submitted: Submitted, api: Any) -> None:
    jobs, attempt = submitted
    told = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu")
    api.pods[attempt.name][0].told = told
    standing = jobs.standing(attempt.name)
    assert not standing.is_over
    assert "is not scheduled: 0/3 nodes are available" in standing.reason


def test_a_suspended_job_waits_in_its_queue(submitted: Submitted, api: Any) -> None:
    jobs, attempt = submitted
    api.jobs[attempt.name]["status"] = condition("Suspended", "True", "JobSuspended", "Job suspended")
    standing = jobs.standing(attempt.name)
    assert (standing.is_over, standing.reason) == (False, "suspended: it waits in its queue")


def test_a_host_that_does_not_see_the_store_says_so_before_it_has_a_log(cluster_job: NewJob, api: Any) -> None:
    job = cluster_job()
    jobs, attempt = KubernetesJobs(job.runtime.kubernetes), begin_attempt(job)
    attempt.job_file.unlink()
    jobs.submit(attempt, job)
    (pod,) = api.pods[attempt.name]
    pod.process.wait(60)
    standing = jobs.standing(attempt.name)
    assert (standing.is_over, standing.is_cause) == (True, False)
    assert "BackoffLimitExceeded" in standing.reason
    while "does not see the store" not in jobs.last_words(attempt.name):
        time.sleep(0.05)


def test_an_api_server_that_is_away_is_a_connection_error(submitted: Submitted, api: Any) -> None:
    jobs, attempt = submitted
    api.away = 1
    with pytest.raises(ConnectionError, match="503"):
        jobs.standing(attempt.name)
    assert not jobs.standing(attempt.name).is_over
