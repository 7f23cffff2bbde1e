"""Trainings with a real vLLM server, small enough for a CPU."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.outside.vllm_server import VllmServer

STILLHOUSE = Path(sys.executable).with_name("stillhouse")
COUNTRIES = ("France", "Italy", "Spain", "Poland", "Norway", "Japan", "Chile", "Kenya", "Egypt", "Cuba", "Peru", "Fiji")


def config_file(folder: Path, model: Path, **sections: dict[str, Any]) -> Path:
    config = {
        "prompts": {"source": str(folder / "prompts.jsonl")},
        "teacher": {"model": str(model)},
        "student": {"model": str(model), "dtype": "float32", "max_length": 256},
        "sft": {"enabled": False},
        "evaluation": {"enabled": False},
        "tracking": {"enabled": False},
        **sections,
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def on_policy(**settings: Any) -> dict[str, Any]:
    """Return four steps, one request at a time: vLLM repeats a completion to the bit only in the same batch."""
    steps = {"num_steps": 4, "prompts_per_step": 3, "max_tokens": 24, "max_turns": 1, "max_concurrent": 1}
    return {"enabled": True, **steps, "learning_rate": 1e-4, **settings}


def start(file: Path, store: Path, output: Path) -> "subprocess.Popen[bytes]":
    command = [STILLHOUSE, "on-policy", file, "--set", f"runtime.store={store}", "--set", "runtime.num_threads=1"]
    with output.open("wb") as target:
        return subprocess.Popen(command, stdout=target, stderr=target, env={**os.environ, "OPENAI_API_KEY": "none"})


def train(file: Path, store: Path) -> Path:
    """Train to the end; return the student's folder."""
    output = store.with_suffix(".txt")
    with start(file, store, output) as process:
        assert process.wait() == 0, output.read_text()
    return student_in(store)


def train_and_kill(file: Path, store: Path, server: VllmServer, *, after_step: int) -> Path:
    """Do as `train`, with the server killed after a step and started again."""
    output = store.with_suffix(".txt")
    with start(file, store, output) as process:
        while f" {after_step}/" not in output.read_text():
            assert process.poll() is None, output.read_text()
            time.sleep(0.05)
        server.kill()
        time.sleep(2)
        assert process.poll() is None, output.read_text()
        server.start()
        assert process.wait() == 0, output.read_text()
    server.wait()
    return student_in(store)


def student_in(store: Path) -> Path:
    [student] = (store / "artifacts" / "on_policy").iterdir()
    return student


def weights(student: Path) -> str:
    [file] = student.glob("*.safetensors")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def metrics(student: Path, name: str) -> list[float]:
    rows = [json.loads(line)["metrics"] for line in (student / "metrics.jsonl").read_text().splitlines()]
    return [row[name] for row in rows if name in row]
