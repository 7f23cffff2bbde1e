"""A Ray cluster of two machines with a token, which loses one of them amid rollouts and amid a training."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.outside.containers import ROOT
from tests.outside.hosts import SHARED, Host, Network, wait_until

pytestmark = [pytest.mark.outside, pytest.mark.hosts, pytest.mark.timeout(3600)]

HEAD = "10.78.0.1"
_TEACHER = """
import json, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

asked, lock = open("/srv/asked.jsonl", "a"), threading.Lock()

class Teacher(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            asked.write(json.dumps([self.client_address[0], request["messages"][-1]["content"]]) + chr(10))
            asked.flush()
        time.sleep(0.5)
        message = {"role": "assistant", "content": "It is 42, since that is what it is."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 10}
        body = json.dumps({"id": "1", "model": "toy", "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("0.0.0.0", 9100), Teacher).serve_forever()
"""
"""Takes half a second for an answer, so that a machine can be lost meanwhile."""
ENV = {
    "OPENAI_API_KEY": "none",
    "PREFECT_API_URL": f"http://{HEAD}:4200/api",
    "PREFECT_API_AUTH_STRING": "team:a-login-of-the-test",
    "PREFECT_HOME": "/srv/prefect",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
    "RAY_raylet_start_wait_time_s": "180",
}


def join(host: Host, *options: str) -> None:
    """Start Ray on a machine."""
    common = ["--block", "--disable-usage-stats", "--num-cpus=2", "--num-gpus=0", f"--node-ip-address={host.address}"]
    host.start("ray", "ray", "start", *common, *options)
    wait_until(lambda: "--block" in host.log("ray"), f"Ray runs on {host.name}")


def replace(node: Host) -> None:
    """Another machine takes a lost one's place."""
    shutil.rmtree(node.folder)
    node.boot()
    join(node, f"--address={HEAD}:6379")


@pytest.fixture
def head(network: Network) -> Host:
    """Return Prefect's server, the head of the cluster, and the flow."""
    host = network.host("head", ENV)
    host.start("prefect", "python", "-m", "tasks.server.prefect_server", "--host", "0.0.0.0")
    host.start("teacher", "python", "-c", _TEACHER)
    join(host, "--head", "--port=6379", f"--dashboard-host={HEAD}", "--temp-dir=/srv/ray")
    address = f"http://{HEAD}:4200/api/ready"
    wait_until(lambda: host.run("curl", "--fail", "--silent", address), "Prefect answers")
    return host


def asked(host: Host) -> list[list[str]]:
    """Return the address of the machine that asked, and the question, in order."""
    return [json.loads(line) for line in (host.folder / "asked.jsonl").read_text().splitlines()]


def write_config(host: Host) -> None:
    body = yaml.safe_load((ROOT / "configs" / "smoke.yaml").read_text())
    body["teacher"] = {"model": "toy", "base_url": f"http://{HEAD}:9100/v1"}
    body["prompts"]["verifier"] = "normalised"
    body["dataset"]["filters"] = {"drop_wrong": False}
    body["tools"] = {}
    # Two processes a host, which fill a machine: without both machines there is no training.
    ray = {"task_runner": "ray", "launcher": "ray", "ray_address": f"{HEAD}:6379", "num_hosts": 2, "num_processes": 2}
    body["runtime"] |= {**ray, "store": f"{SHARED}/runs", "device": "cpu", "shard_size": 40, "max_concurrency": 8}
    body["prompts"]["max_prompts"] = 400
    body["sft"] |= {"num_epochs": 12, "trainer": {"checkpoint_every_steps": 20}}
    body["on_policy"]["enabled"] = body["evaluation"]["enabled"] = False
    (host.folder / "config.yaml").write_text(yaml.safe_dump(body))


def checkpoints(shared: Path) -> list[Path]:
    return list(shared.glob("runs/training/sft-*/checkpoints/step-*"))


def facts(shared: Path) -> dict[str, Any]:
    [student] = shared.glob("runs/artifacts/sft/*/student.json")
    return dict(json.loads(student.read_text())["facts"])


def test_a_node_that_is_lost_costs_no_rollout_and_the_training_goes_on_from_its_checkpoint(
    network: Network, head: Host
) -> None:
    node, shared = network.host("node", ENV), head.folder.with_name("shared")
    join(node, f"--address={HEAD}:6379")
    write_config(head)
    command = 'stillhouse sft config.yaml; echo "ended with $?"'
    head.start("run", "sh", "-c", command)
    wait_until(lambda: sum(address == node.address for address, _ in asked(head)) >= 20, "the node asks the teacher")
    node.kill()
    assert len(asked(head)) < 300
    wait_until(lambda: "\nsft " in head.log("run"), "the rollouts are complete without the node")
    questions = [question for _, question in asked(head)]
    # What was in flight there is asked again, and nothing else.
    assert len(questions) - len(set(questions)) <= 8
    replace(node)
    wait_until(lambda: checkpoints(shared), "a checkpoint of both hosts")
    node.kill()
    replace(node)
    wait_until(lambda: "ended with" in head.log("run"), "the run ends")
    assert "ended with 0" in head.log("run")
    assert facts(shared)["resumed_from_step"] >= 20
