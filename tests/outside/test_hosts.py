"""Three machines, as `docs/operations/deploying.md` sets them up: servers, a worker of the pool cpu, one of gpu."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.outside.containers import ROOT
from tests.outside.hosts import Host, Network, wait_until

pytestmark = [pytest.mark.outside, pytest.mark.hosts, pytest.mark.timeout(3600)]

BUCKET = "distillation"
SERVERS = "10.78.0.1"
POSTGRES = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("missing"))
ENV = {
    "PREFECT_API_URL": f"http://{SERVERS}:4200/api",
    "PREFECT_API_AUTH_STRING": "team:a-login-of-the-test",
    "PREFECT_HOME": "/srv/prefect",
    # A lost machine is noticed after three of them.
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "MLFLOW_TRACKING_URI": f"http://{SERVERS}:5000",
    "AWS_ENDPOINT_URL": f"http://{SERVERS}:9000",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_RUNS = """
import os, httpx
login = tuple(os.environ["PREFECT_API_AUTH_STRING"].split(":"))
wanted = {"flows": {"name": {"any_": ["distill"]}}}
print(httpx.post(os.environ["PREFECT_API_URL"] + "/flow_runs/filter", json=wanted, auth=login).text)
"""
S3 = "import boto3, json; s3 = boto3.client('s3'); "


def start_postgres(host: Host) -> None:
    (host.folder / "postgres").mkdir()
    shutil.chown(host.folder / "postgres", "postgres")
    host.folder.chmod(0o755)
    as_postgres = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
    host.run(*as_postgres, f"{POSTGRES}/initdb", "--auth=trust", "-D", "/srv/postgres")
    options = ["-h", host.address, "-k", "/srv/postgres", "-D", "/srv/postgres"]
    (host.folder / "postgres" / "pg_hba.conf").write_text("local all all trust\nhost all all 10.78.0.0/24 trust\n")
    host.start("postgres", *as_postgres, f"{POSTGRES}/postgres", *options)
    psql = [f"{POSTGRES}/psql", "-h", host.address, "-U", "postgres"]
    wait_until(lambda: host.run(f"{POSTGRES}/pg_isready", "-h", host.address), "Postgres takes connections")
    for database in ("prefect", "mlflow"):
        host.run(*psql, "-c", f"CREATE DATABASE {database}")


@pytest.fixture
def servers(network: Network) -> Host:
    """Postgres, Prefect, MLflow and S3."""
    if not POSTGRES.exists():
        pytest.skip("not installed: postgresql")
    database = f"postgres@{SERVERS}"
    url = f"postgresql+asyncpg://{database}/prefect"
    host = network.host("a", {**ENV, "PREFECT_SERVER_DATABASE_CONNECTION_URL": url})
    start_postgres(host)
    host.start("s3", "moto_server", "-H", "0.0.0.0", "-p", "9000")
    host.start("prefect", "python", "-m", "tasks.server.prefect_server", "--host", "0.0.0.0")
    backend = ["--backend-store-uri", f"postgresql+psycopg://{database}/mlflow"]
    allowed = ["--allowed-hosts", f"{SERVERS}:*,localhost:*"]
    host.start("mlflow", "mlflow", "server", "--workers", "1", "--host", "0.0.0.0", *allowed, *backend)
    for port, path in ((4200, "/api/ready"), (5000, "/health"), (9000, "/")):
        address = f"http://{SERVERS}:{port}{path}"
        wait_until(lambda address=address: host.run("curl", "--fail", "--silent", address), f"{address} answers")
    host.run("python", "-c", f"{S3}s3.create_bucket(Bucket={BUCKET!r})")
    host.run("python", "deployments/pools.py")
    wanted = ["-n", "gpu", "-n", "cpu", "-n", "smoke"]
    tool = ["python", "-m", "tasks.server.environment", "prefect", "--no-prompt"]
    host.run(*tool, "deploy", *wanted, "--prefect-file", "deployments/prefect.yaml")
    host.run("python", "deployments/automations.py")
    return host


def start_worker(host: Host, pool: str) -> None:
    host.start("worker", "python", "-m", "tasks.server.environment", "prefect", "worker", "start", "--pool", pool)
    wait_until(lambda: "started!" in host.log("worker"), f"the worker of {pool} is ready")


def config() -> dict[str, Any]:
    body = yaml.safe_load((ROOT / "configs" / "smoke.yaml").read_text())
    body["runtime"] |= {
        "store": f"s3://{BUCKET}/team",
        "scratch": "/srv/scratch",
        "training_deployment": "run-stage/gpu",
        "rollout_deployment": "run-stage/cpu",
    }
    body["on_policy"] |= {"num_steps": 300, "trainer": {"checkpoint_every_steps": 20}}
    return dict(body)


def keys(host: Host, prefix: str) -> list[str]:
    listed = f"s3.list_objects_v2(Bucket={BUCKET!r}, Prefix='team/{prefix}').get('Contents', ())"
    return list(json.loads(host.run("python", "-c", f"{S3}print(json.dumps([o['Key'] for o in {listed}]))")))


def state_of_run(host: Host) -> str:
    """The state of the one flow run that is nobody's stage."""
    runs = json.loads(host.run("python", "-c", _RUNS))
    assert len(runs) == 1
    return str(runs[0]["state_type"])


def has_completed(host: Host) -> bool:
    state = state_of_run(host)
    if state in {"FAILED", "CRASHED", "CANCELLED"}:
        pytest.fail(f"the run is {state}: {host.log('run')[-3000:]}")
    return state == "COMPLETED"


def test_a_machine_that_is_lost_amid_a_training_is_noticed_and_another_ends_it(network: Network, servers: Host) -> None:
    cpu, gpu = network.host("b", ENV), network.host("c", ENV)
    start_worker(cpu, "cpu")
    start_worker(gpu, "gpu")
    parameters = ["--param", f"config={json.dumps(config())}"]
    servers.start("run", "prefect", "deployment", "run", "distill/smoke", *parameters, "--watch")
    wait_until(lambda: keys(servers, "underway/training/on_policy-"), "a checkpoint on S3")
    gpu.kill()
    shutil.rmtree(gpu.folder)
    gpu.boot()
    start_worker(gpu, "gpu")
    wait_until(lambda: has_completed(servers), "the run ends well", 1500)
    [student] = [key for key in keys(servers, "artifacts/on_policy/") if key.endswith("/student.json")]
    read = f"s3.get_object(Bucket={BUCKET!r}, Key={student!r})['Body'].read().decode()"
    facts = json.loads(servers.run("python", "-c", f"{S3}print({read})"))["facts"]
    assert facts["resumed_from_step"] >= 20
    # Each rollout was sampled on the worker's machine, as a flow run of its own.
    assert "run-stage" in cpu.log("worker")
