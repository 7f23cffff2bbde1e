"""Real vLLM servers that a run starts."""

import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from stillhouse.store.records import read_trajectories
from tests.outside.vllm_trainings import STILLHOUSE, config_file, metrics, on_policy, start, student_in, train, weights

pytestmark = [pytest.mark.outside, pytest.mark.vllm, pytest.mark.timeout(1800)]


def small_distillation(
    teacher: str, student: str, runtime: dict[str, Any], **on_policy_settings: Any
) -> dict[str, Any]:
    """Return all stages, in minutes: rollouts with a tool, SFT, on-policy, evaluation."""
    return {
        "prompts": {"source": "embedded:prompts.jsonl", "held_out_fraction": 0.01, "verifier": "numeric"},
        "teacher": {"model": teacher},
        "rollouts": {"max_prompts": 24, "max_tokens": 48, "max_turns": 4, "record_tokens": True},
        "tools": {"builtin": ["calculator"]},
        "student": {"model": student, "parameters": "lora", "dtype": "float32", "max_length": 512},
        "sft": {"num_epochs": 1, "batch_size": 8},
        "on_policy": on_policy(**{"algorithm": "divergence", "max_turns": 4, "max_tokens": 48, **on_policy_settings}),
        "evaluation": {"max_prompts": 4, "max_tokens": 48, "max_turns": 4},
        "tracking": {"enabled": False},
        "runtime": runtime,
    }


@pytest.mark.parametrize(
    ("parameters", "is_pretrained"), [("lora", False), ("full", False), ("lora", True)], ids=["lora", "full", "SmolLM2"]
)
def test_a_distillation_whose_models_are_all_served_by_vllm_that_it_starts(
    served_by_vllm: dict[str, Any],
    pretrained: Path,
    folder: Path,
    tmp_path: Path,
    parameters: str,
    is_pretrained: bool,
) -> None:
    store = tmp_path / "store"
    teacher, student = (str(pretrained),) * 2 if is_pretrained else ("embedded:teacher", "embedded:student")
    config = small_distillation(teacher, student, {**served_by_vllm, "store": str(store)})
    config["student"]["parameters"] = parameters
    if is_pretrained:
        # What it can answer.
        config["prompts"] = {"source": str(folder / "prompts.jsonl"), "held_out_fraction": 0.2}
        config["rollouts"]["max_tokens"] = 96
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [STILLHOUSE, "distill", tmp_path / "config.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    logs = {log.name.split("-", 1)[1] for log in (store / "vllm").iterdir()}
    assert {f"{Path(model).name.replace(':', '-')}.log" for model in (teacher, student)} <= logs
    assert len(logs) >= 3, "the trained students are measured, too"
    assert all(abs(ratio) < 0.05 for ratio in metrics(student_in(store), "on_policy/log_ratio_mean"))
    [rollouts] = (store / "artifacts" / "rollouts").glob("*/trajectories.jsonl")
    trajectories = list(read_trajectories(rollouts))
    # SmolLM2 hardly calls tools.
    assert is_pretrained or any(len(trajectory.turns) > 1 for trajectory in trajectories), "calls of tools are read"
    assert all(turn.completion_ids for trajectory in trajectories for turn in trajectory.turns)


def vllm_below(process: "subprocess.Popen[bytes]") -> psutil.Process | None:
    """Return the server that a run has started; None while there is none."""
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "vllm.entrypoints.cli.main" in child.cmdline() and "stillhouse.processes.command" not in child.cmdline():
                return child
    return None


SCORED = {"teachers": [{"name": "near", "kind": "vllm", "model": "embedded:teacher"}], "algorithm": "sampled_kl"}


@pytest.mark.parametrize(
    ("parameters", "teachers"),
    [("lora", {}), ("full", {}), ("lora", SCORED)],
    ids=["sampler of adapters", "sampler of all weights", "teacher"],
)
def test_a_server_of_the_run_that_is_killed_is_started_again_and_changes_no_weights(
    served_by_vllm: dict[str, Any], tmp_path: Path, parameters: str, teachers: dict[str, Any]
) -> None:
    # A teacher without an address has one by vLLM whatever samples.
    runtime = {**served_by_vllm, "engine": "transformers" if teachers else "vllm"}
    sections = small_distillation("embedded:teacher", "embedded:student", runtime, **teachers)
    sections = {name: sections[name] for name in ("prompts", "teacher", "tools", "student", "on_policy", "runtime")}
    sections["student"]["parameters"] = parameters
    file = config_file(tmp_path, Path("embedded:student"), **sections)
    undisturbed = train(file, tmp_path / "undisturbed")
    output = tmp_path / "killed.txt"
    with start(file, tmp_path / "killed", output) as process:
        # The terminal is not told of every step.
        while not re.search(" [1-3]/4", output.read_text()):
            assert process.poll() is None, output.read_text()
            time.sleep(0.05)
        server = vllm_below(process)
        assert server is not None
        server.kill()
        assert process.wait() == 0, output.read_text()
    assert weights(student_in(tmp_path / "killed")) == weights(undisturbed)
    [log] = (tmp_path / "killed" / "vllm").iterdir()
    assert log.read_text().count("Application startup complete") == 2
    if teachers:
        local = {**sections, "on_policy": {**sections["on_policy"], "teachers": [], "teacher": "embedded:teacher"}}
        in_process = train(config_file(tmp_path, Path("embedded:student"), **local), tmp_path / "local")
        near, served = (
            metrics(student, "on_policy/teacher_kl") for student in (in_process, student_in(tmp_path / "killed"))
        )
        assert served == pytest.approx(near, abs=1e-3)
