"""Kubernetes jobs by the official client, against an API server of our own that speaks its protocol over HTTP.

Its pods are processes of this machine, started by the command, the variables and the folder of the manifest.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
import yaml

from stillhouse.config import KubernetesConfig, RuntimeConfig
from stillhouse.errors import ConfigError, TrainingError, TrainingKilled
from stillhouse.progress import NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.launchers.attempt import Attempt, begin_attempt
from stillhouse.training.launchers.cluster import Patience, train_on_cluster
from stillhouse.training.launchers.kubernetes_jobs import KubernetesJobs
from stillhouse.training.launchers.launch import train

TOKEN = "token-of-the-test"
PATIENCE = Patience(look_s=0.05, settle_s=1.0)
Json = dict[str, Any]


class Pod:
    """A pod whose container is a process."""

    def __init__(self, job: Json, index: int) -> None:
        self.name = f"{job['metadata']['name']}-{index}-{uuid4().hex[:5]}"
        self.labels = {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
        self.told: Json = {}
        """Parts of the status that the test puts in the place of the process's own."""
        container = job["spec"]["template"]["spec"]["containers"][0]
        variables = {"JOB_COMPLETION_INDEX": str(index)}
        for entry in container["env"]:
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            variables[entry["name"]] = "127.0.0.1" if field == "status.podIP" else entry["value"]
        command = [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in container["command"]]
        command[0] = sys.executable
        self.process = subprocess.Popen(
            command,
            cwd=container["workingDir"],
            env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.log = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log += line

    def end(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def as_json(self) -> Json:
        code = self.process.poll()
        state: Json = {"running": {}}
        if code is not None:
            code = 128 - code if code < 0 else code
            state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        status = {"name": "training", "ready": False, "restartCount": 0, "image": "i", "imageID": "i", "state": state}
        return {
            "metadata": {"name": self.name, "labels": self.labels},
            "spec": {"containers": [{"name": "training"}]},
            "status": {"phase": phase, "containerStatuses": [status], **self.told},
        }


class Refused(Exception):
    """An answer that is a `Status`."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class ApiServer:
    """Jobs and pods of the namespace `training`."""

    def __init__(self) -> None:
        self.jobs: dict[str, Json] = {}
        self.pods: dict[str, list[Pod]] = {}
        self.num_created = 0
        self.away = 0
        """How many of the next requests are answered by 503."""
        self.starts_pods = True

    def answer(self, method: str, path: str, query: dict[str, str], body: Json) -> Json | bytes:
        if self.away > 0:
            self.away -= 1
            raise Refused(503, "ServiceUnavailable", "the server is starting")
        match (method, *path.strip("/").split("/")[1:]):
            case (_, *_, "namespaces", namespace, _) | (_, *_, "namespaces", namespace, _, _) if namespace == "secret":
                raise Refused(403, "Forbidden", 'jobs.batch is forbidden: User "flow" cannot create resource "jobs"')
            case ("POST", "batch", "v1", "namespaces", _, "jobs"):
                return self._create(body, query)
            case ("GET", "batch", "v1", "namespaces", _, "jobs", name):
                return self._job(name)
            case ("DELETE", "batch", "v1", "namespaces", _, "jobs", name):
                return self._delete(name, query | body)
            case ("GET", "v1", "namespaces", _, "pods"):
                _, _, wanted = query["labelSelector"].partition("=")
                return {"kind": "PodList", "apiVersion": "v1", "items": [p.as_json() for p in self.pods[wanted]]}
            case ("GET", "v1", "namespaces", _, "pods", name, "log"):
                log = next(pod.log for pods in self.pods.values() for pod in pods if pod.name == name)
                return b"".join(log.splitlines(keepends=True)[-int(query["tailLines"]) :])
        raise Refused(404, "NotFound", f"the server could not find the requested resource: {method} {path}")

    def _create(self, body: Json, query: dict[str, str]) -> Json:
        name = body["metadata"]["name"]
        assert query["fieldValidation"] == "Strict"
        if name in self.jobs:
            raise Refused(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        self.num_created += 1
        body["metadata"] |= {"uid": str(uuid4()), "namespace": "training"}
        self.jobs[name] = body | {"status": {}}
        self.pods[name] = [Pod(body, index) for index in range(body["spec"]["completions"])] if self.starts_pods else []
        return self.jobs[name]

    def _job(self, name: str) -> Json:
        job = self.jobs.get(name)
        if job is None:
            raise Refused(404, "NotFound", f'jobs.batch "{name}" not found')
        codes = [pod.process.poll() for pod in self.pods[name]]
        if "deletionTimestamp" in job["metadata"]:
            if None not in codes:
                del self.jobs[name]
                return self._job(name)
        elif any(codes):
            for pod in self.pods[name]:
                pod.end(signal.SIGTERM)
            failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "has reached it"}
            job["status"] = {"conditions": [failed]}
        elif codes and None not in codes:
            job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        return job

    def _delete(self, name: str, options: Json) -> Json:
        job = self._job(name)
        assert options["propagationPolicy"] == "Foreground"
        job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        for pod in self.pods[name]:
            pod.end(signal.SIGTERM)
        return job


def handler_of(api: ApiServer) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            code, answer = (201 if self.command == "POST" else 200), None
            try:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    raise Refused(401, "Unauthorized", "Unauthorized")
                with lock:
                    answer = api.answer(self.command, url.path, query, body)
            except Refused as refused:
                code = refused.code
                status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": str(refused)}
                answer = status | {"reason": refused.reason, "code": code}
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(answer, bytes) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A cluster that the kubeconfig of the environment names."""
    api = ApiServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(api))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "flow"}}],
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "flow", "user": {"token": TOKEN}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    yield api
    for pods in api.pods.values():
        for pod in pods:
            pod.end(signal.SIGKILL)
            pod.process.wait()
            if pod.process.stdout is not None:
                pod.process.stdout.close()
    server.shutdown()
    server.server_close()


def on_cluster(job: TrainJob, *, num_hosts: int = 1, **settings: Any) -> TrainJob:
    """The job as one of Kubernetes, of few steps."""
    assert job.sft is not None
    kubernetes = KubernetesConfig(**{"image": "stillhouse:1", "namespace": "training", **settings})
    runtime = RuntimeConfig(
        device="cpu", num_threads=1, launcher="kubernetes", num_hosts=num_hosts, kubernetes=kubernetes
    )
    return job.model_copy(update={"runtime": runtime, "sft": job.sft.model_copy(update={"num_epochs": 4})})


@pytest.fixture
def submitted(sft_job, api: ApiServer, tmp_path: Path) -> tuple[KubernetesJobs, Attempt]:
    """A job whose pods wait to be told what becomes of them."""
    job = on_cluster(sft_job(tmp_path))
    jobs, attempt = KubernetesJobs(job.runtime.kubernetes), begin_attempt(job)
    write_sleeper(attempt)
    jobs.submit(attempt, job)
    return jobs, attempt


def write_sleeper(attempt: Attempt) -> None:
    """Two hosts of which one never comes: the pod waits for it."""
    body = json.loads(attempt.job_file.read_bytes())
    body["runtime"] |= {"num_hosts": 2}
    attempt.job_file.write_text(json.dumps(body))


def waiting(reason: str, message: str) -> Json:
    status = {"name": "training", "ready": False, "restartCount": 0, "image": "i", "imageID": "i"}
    return {"containerStatuses": [status | {"state": {"waiting": {"reason": reason, "message": message}}}]}


def ended(reason: str, exit_code: int) -> Json:
    status = {"name": "training", "ready": False, "restartCount": 0, "image": "i", "imageID": "i"}
    return {"containerStatuses": [status | {"state": {"terminated": {"reason": reason, "exitCode": exit_code}}}]}


def condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


def test_a_job_runs_until_it_is_cancelled_and_is_over_when_its_pods_are_gone(submitted, api: ApiServer):
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


def test_a_job_submitted_twice_is_one_job(submitted, sft_job, api: ApiServer, tmp_path: Path):
    jobs, attempt = submitted
    jobs.submit(attempt, on_cluster(sft_job(tmp_path)))
    assert api.num_created == 1


@pytest.mark.parametrize(
    ("told", "killed", "expected"),
    [
        (ended("OOMKilled", 137), False, r"more memory than its limit \(OOMKilled\).*microbatch_tokens"),
        (ended("Error", 137), True, "was killed by SIGKILL"),
        ({"reason": "Evicted", "message": "node was low on memory"}, True, "taken away: Evicted: node was low"),
        (condition("DisruptionTarget", "True", "PreemptionByScheduler", "for a better one"), True, "taken away: Preem"),
        (waiting("ImagePullBackOff", "no such image"), False, "cannot start: ImagePullBackOff: no such image"),
    ],
)
def test_what_kubernetes_did_to_a_pod_is_the_cause(submitted, api: ApiServer, told: Json, killed: bool, expected: str):
    jobs, attempt = submitted
    api.pods[attempt.name][0].told = told
    standing = jobs.standing(attempt.name)
    assert (standing.is_over, standing.is_cause, standing.killed) == (True, True, killed)
    assert re.search(expected, standing.reason)


def test_what_a_pod_waits_for_is_told(submitted, api: ApiServer):
    jobs, attempt = submitted
    told = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu")
    api.pods[attempt.name][0].told = told
    standing = jobs.standing(attempt.name)
    assert not standing.is_over
    assert "is not scheduled: 0/3 nodes are available" in standing.reason


def test_a_suspended_job_waits_in_its_queue(submitted, api: ApiServer):
    jobs, attempt = submitted
    api.jobs[attempt.name]["status"] = condition("Suspended", "True", "JobSuspended", "Job suspended")
    standing = jobs.standing(attempt.name)
    assert (standing.is_over, standing.reason) == (False, "suspended: it waits in its queue")


def test_a_host_that_does_not_see_the_store_says_so_before_it_has_a_log(sft_job, api: ApiServer, tmp_path: Path):
    job = on_cluster(sft_job(tmp_path))
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


def test_an_api_server_that_is_away_is_a_connection_error(submitted, api: ApiServer):
    jobs, attempt = submitted
    api.away = 1
    with pytest.raises(ConnectionError, match="503"):
        jobs.standing(attempt.name)
    assert not jobs.standing(attempt.name).is_over


def test_a_refusal_names_the_rights_that_are_needed(sft_job, api: ApiServer, tmp_path: Path):
    job = on_cluster(sft_job(tmp_path), namespace="secret")
    with pytest.raises(ConfigError, match=r"403.*is forbidden.*a role that may create, get and delete jobs"):
        train(job, NoProgress())


def test_a_slip_in_the_template_is_told_of_by_its_field(sft_job, api: ApiServer, tmp_path: Path):
    template = tmp_path / "pod.yaml"
    template.write_text("spec: {nodeSelektor: {gpu: h100}}")
    job = on_cluster(sft_job(tmp_path), template=str(template))
    with pytest.raises(ConfigError, match=r"runtime\.kubernetes\.template.*no Kubernetes job(?s:.*)spec\.nodeSelektor"):
        train(job, NoProgress())
    assert api.num_created == 0


def test_a_cluster_that_is_nowhere_configured_is_told_of_by_its_setting(
    sft_job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"runtime\.kubernetes\.context None: no cluster is configured"):
        train(on_cluster(sft_job(tmp_path)), NoProgress())


FLOW = """
import sys
from pathlib import Path
from stillhouse.progress import NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.launchers.launch import train
train(TrainJob.model_validate_json(Path(sys.argv[1]).read_bytes()), NoProgress())
"""


def wait_for_checkpoint(job: TrainJob, process: subprocess.Popen[bytes]) -> None:
    while not any((job.work_dir / "checkpoints").glob("step-*")):
        assert process.poll() is None
        time.sleep(0.05)


@pytest.mark.slow
def test_a_flow_killed_and_started_again_follows_the_job_it_left(sft_job, api: ApiServer, tmp_path: Path):
    job = on_cluster(sft_job(tmp_path), num_hosts=2)
    (tmp_path / "job.json").write_text(job.model_dump_json())
    with subprocess.Popen([sys.executable, "-c", FLOW, str(tmp_path / "job.json")]) as flow:
        wait_for_checkpoint(job, flow)
        flow.kill()
    facts = train_on_cluster(job, NoProgress(), KubernetesJobs(job.runtime.kubernetes), PATIENCE)
    assert facts["resumed_from_step"] is None
    assert (job.output_dir / "model.safetensors").is_file()
    assert api.num_created == 1
    (pods,) = api.pods.values()
    assert len(pods) == 2


@pytest.mark.slow
def test_a_terminated_flow_deletes_its_job_which_saves_a_checkpoint_first(sft_job, api: ApiServer, tmp_path: Path):
    job = on_cluster(sft_job(tmp_path)).model_copy(update={"sft": sft_job(tmp_path).sft})
    (tmp_path / "job.json").write_text(job.model_dump_json())
    code = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(7))\n" + FLOW
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "job.json")]) as flow:
        wait_for_checkpoint(job, flow)
        flow.terminate()
        assert flow.wait(120) == 7
    assert api.jobs == {}
    assert "stopped by SIGTERM; a checkpoint was saved" in (job.work_dir / "train.log").read_text() or any(
        "a checkpoint was saved" in path.read_text() for path in job.work_dir.glob("attempts/*/answers-0.jsonl")
    )


@pytest.mark.slow
def test_a_killed_host_is_worth_another_try_which_continues(sft_job, api: ApiServer, tmp_path: Path):
    job = on_cluster(sft_job(tmp_path))

    class Killer:
        def update(self, stage: str, done: int, total: int | None, **facts: Any) -> None:
            if done == 7:
                for pods in api.pods.values():
                    pods[-1].end(signal.SIGKILL)

    jobs = KubernetesJobs(job.runtime.kubernetes)
    with pytest.raises(TrainingKilled, match="was killed by SIGKILL"):
        train_on_cluster(job, Killer(), jobs, PATIENCE)
    assert train_on_cluster(job, NoProgress(), jobs, PATIENCE)["resumed_from_step"] >= 5
    assert api.num_created == 2


@pytest.mark.slow
def test_an_error_of_the_training_is_the_launchers_error(sft_job, api: ApiServer, tmp_path: Path):
    job = on_cluster(sft_job(tmp_path)).model_copy(update={"student_ref": "embedded:nobody"})
    with pytest.raises(TrainingError, match=r"^embedded name 'nobody' is unknown.*\(job stillhouse-sft-"):
        train(job, NoProgress())
