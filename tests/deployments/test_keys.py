"""Keys of a deployment's runs under a worker whose environment has none."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stillhouse.store.records import write_jsonl
from tests.deployments.processes import ROOT, TOOL, Prefect
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_deployment_reads_env_file_and_secret_block_and_says_where_it_looked(
    prefect: Prefect, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    for name in ("configs", "deployments"):
        shutil.copytree(ROOT / name, project / name)
    prefect.tool("python", "deployments/pools.py")
    deploy = [
        *TOOL,
        "prefect",
        "--no-prompt",
        "deploy",
        "--name=smoke-generate",
        "--prefect-file",
        "deployments/prefect.yaml",
    ]
    with prefect.launch(deploy, tmp_path / "deploy.log", project) as deploying:
        deploying.finish()
    write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": "What is 17 + 25?"}])

    def config(url: str, store: str) -> dict[str, Any]:
        return {
            "prompts": {"source": str(tmp_path / "prompts.jsonl"), "held_out_fraction": 0.0},
            "teacher": {"model": "simulated", "base_url": url},
            "dataset": {"validation_fraction": 0.0},
            "tracking": {"enabled": False},
            "runtime": {"store": str(tmp_path / store), "api_key_env": "NIGHTLY_KEY", "num_threads": 1},
        }

    keys: list[str] = []

    def answer(request: ReceivedRequest) -> Reply:
        keys.append(request.authorization)
        return Reply(completion("It is 42."))

    with SimulatedProvider(answer) as provider, prefect.worker():
        run = partial(config, provider.url)
        state = prefect.ended(prefect.submit("generate/smoke-generate", run("none")))
        assert state["type"] == "FAILED"
        for place in (f"{project}/.env (no such file)", "Secret block `nightly-key`", f"on {prefect.api}"):
            assert place in state["message"]
        save = "from prefect.blocks.system import Secret; Secret(value='sk-block').save('nightly-key')"
        subprocess.run([*TOOL, sys.executable, "-c", save], env=prefect.env, check=True, timeout=300)
        assert prefect.ended(prefect.submit("generate/smoke-generate", run("block")))["type"] == "COMPLETED"
        (project / ".env").write_text("NIGHTLY_KEY=sk-file\n")
        assert prefect.ended(prefect.submit("generate/smoke-generate", run("file")))["type"] == "COMPLETED"
    assert list(dict.fromkeys(keys)) == ["Bearer sk-block", "Bearer sk-file"]
