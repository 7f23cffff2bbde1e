"""A Kubernetes API server of our own that speaks its protocol over HTTP, for the official client.

Its pods are processes of this machine, started by the command, the variables and the folder of the manifest.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
import yaml

from stillhouse.config import KubernetesConfig, RuntimeConfig
from stillhouse.training.job import TrainJob

TOKEN = "token-of-the-test"
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


@pytest.fixture
def cluster_job(sft_job: Callable[[Path], TrainJob], tmp_path: Path) -> Callable[..., TrainJob]:
    """A job of few steps for Kubernetes, by settings of `runtime.kubernetes`."""

    def make(*, num_hosts: int = 1, **settings: Any) -> TrainJob:
        job = sft_job(tmp_path)
        assert job.sft is not None
        kubernetes = KubernetesConfig(**{"image": "stillhouse:1", "namespace": "training", **settings})
        runtime = RuntimeConfig(
            device="cpu", num_threads=1, launcher="kubernetes", num_hosts=num_hosts, kubernetes=kubernetes
        )
        return job.model_copy(update={"runtime": runtime, "sft": job.sft.model_copy(update={"num_epochs": 4})})

    return make
