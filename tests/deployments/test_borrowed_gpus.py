"""A training handed to Slurm and to SkyPilot as docs/recipes say, with stand-ins of `srun` and `sky` that run it here.

What their commands are given is real, and so are Prefect's server, its worker, the flow and the training. That Slurm
and a cloud take it is not shown here.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deployments.processes import ROOT, TOOL, Launched, Prefect, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SRUN = """
import glob, json, os, signal, subprocess, sys, time
from itertools import dropwhile

calls = os.environ["CALLS"]
preempted = not os.path.exists(calls)
with open(calls, "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
step = subprocess.Popen(list(dropwhile(lambda word: word.startswith("--"), sys.argv[1:])), start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: step.terminate())
if preempted:
    while not glob.glob(os.environ["CHECKPOINTS"]):
        time.sleep(0.05)
    # Slurm tells all processes of the step, and kills those that are there after a grace.
    os.killpg(step.pid, signal.SIGTERM)
    time.sleep(20)
    try:
        os.killpg(step.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
sys.exit(step.wait() % 256)
"""
SKY = """
import json, os, subprocess, sys
import yaml

words = sys.argv[1:]
with open(os.environ["CALLS"], "a") as file:
    print(json.dumps(words), file=file)
if words[0] == "launch":
    task = yaml.safe_load(open(words[-1]))
    options = list(zip(words, words[1:]))
    env = {name: os.environ[name] for option, name in options if option in ("--env", "--secret")}
    assert env.keys() == task["envs"].keys() | task["secrets"].keys()
    # A machine of its own has its own home and a copy of the folder.
    machine = os.environ["MACHINE"]
    given = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")}
    job = subprocess.run(["bash", "-c", task["run"]], cwd=machine, env={**given, "HOME": machine, **env})
    sys.exit(100 if job.returncode else 0)
"""


@pytest.fixture
def borrow(prefect: Prefect, tmp_path: Path) -> Callable[..., list[list[str]]]:
    """Hand the training of a run to a deployment of examples/; return what its stand-in was called with."""

    def run(name: str, command: str, program: str) -> list[list[str]]:
        stand_in, calls, machine = tmp_path / "bin" / command, tmp_path / "calls", tmp_path / "machine"
        stand_in.parent.mkdir()
        stand_in.write_text(f"#!{sys.executable}\n{program}")
        stand_in.chmod(0o755)
        machine.mkdir()
        for path in ROOT.iterdir():
            (machine / path.name).symlink_to(path)
        if not (machine / ".venv").exists():
            (machine / ".venv").symlink_to(sys.prefix)
        store = tmp_path / "store"
        prefect.env |= {
            "PATH": f"{stand_in.parent}:{Path(sys.executable).parent}:{prefect.env['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PWD": str(ROOT),
            "CALLS": str(calls),
            "MACHINE": str(machine),
            "CHECKPOINTS": f"{store}/training/*/checkpoints/*/*",
            "PREFECT_API_AUTH_STRING": prefect.login,
            "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        template = json.dumps(json.loads(prefect.tool("python", "-c", _TEMPLATE)))
        (tmp_path / "template.json").write_text(template)
        pool = ["work-pool", "create", name, "--type", "process"]
        prefect.tool("prefect", *pool, "--base-job-template", str(tmp_path / "template.json"))
        prefect.tool("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", f"examples/{name}/prefect.yaml")
        flow = [*TOOL, "python", "-m", "flows.cli", "sft", "configs/smoke.yaml"]
        for setting in (f"store={store}", f"training_deployment=run-stage/{name}"):
            flow += ["--set", f"runtime.{setting}"]
        worker = [*TOOL, "prefect", "worker", "start", "--pool", name]
        with (
            Launched(worker, tmp_path / "worker.log", env=prefect.env, cwd=ROOT),
            Launched(flow, tmp_path / "flow.log", env=prefect.env, cwd=ROOT) as launched,
        ):
            launched.finish()
            # The flow does not wait for the end of the command that its stage ran in.
            wait_until(lambda: calls.read_text().count("\n") == 2, f"the second call of {command}")
        return [json.loads(line) for line in calls.read_text().splitlines()]

    return run


_TEMPLATE = "import json; from deployments.pools import job_template; print(json.dumps(job_template('process', 'gpu')))"


def test_a_training_runs_in_a_slurm_job_and_goes_on_in_the_next_where_that_was_preempted(
    borrow: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    first, second = borrow("slurm", "srun", SRUN)
    assert first == second
    assert {"--gpus=1", "--signal=TERM@180"} <= set(first)
    assert first[-3:] == ["prefect", "flow-run", "execute"]
    log = (tmp_path / "flow.log").read_text()
    assert "starting it again" in log


def test_a_training_runs_on_a_machine_of_skypilot_that_is_taken_down(borrow: Callable[..., list[list[str]]]) -> None:
    launch, down = borrow("skypilot", "sky", SKY)
    cluster = launch[launch.index("--cluster") + 1]
    assert down == ["down", "--yes", "--async", cluster]
