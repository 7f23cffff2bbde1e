"""A real vLLM server samples for a student and writes rollouts."""

import copy
import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from stillhouse.chat.template import render
from stillhouse.config import OnPolicyConfig, StudentConfig
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.score import score_tokens
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.vllm import VllmEngines
from tests.outside.vllm_server import CONTEXT, MODEL, VllmServer
from tests.outside.vllm_trainings import (
    STILLHOUSE,
    config_file,
    metrics,
    on_policy,
    train,
    train_and_kill,
    weights,
)
from tests.stillhouse.training.trainings import disturb

pytestmark = [pytest.mark.outside, pytest.mark.vllm, pytest.mark.timeout(1800)]


def test_a_sampling_server_that_is_killed_amid_a_training_changes_none_of_its_weights(
    sampling_server: VllmServer, pretrained: Path, folder: Path
) -> None:
    settings = on_policy(teacher=str(pretrained), engine_url=sampling_server.url)
    file = config_file(folder, pretrained, on_policy=settings)
    undisturbed = train(file, folder / "undisturbed")
    killed = train_and_kill(file, folder / "killed", sampling_server, after_step=2)
    assert weights(killed) == weights(undisturbed)


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_whole_weights_are_pushed_and_sampled(
    scoring_server: VllmServer, pretrained: Path, folder: Path, max_staleness: int
) -> None:
    settings = on_policy(
        teacher=str(pretrained),
        engine_url=scoring_server.url,
        max_staleness=max_staleness,
        learning_rate=1e-5,
    )
    student = {"model": str(pretrained), "dtype": "float32", "max_length": 256, "parameters": "full"}
    trained = train(config_file(folder, pretrained, on_policy=settings, student=student), folder / "store")
    # A mean over steps, of which the first samples from the newest weights.
    assert (metrics(trained, "on_policy/staleness")[-1] > 0) == (max_staleness > 0)
    # In nats a token between sampler and trainer.
    assert all(abs(ratio) < 0.15 for ratio in metrics(trained, "on_policy/log_ratio_mean"))


@pytest.mark.parametrize("parameters", ["lora", "full"])
def test_new_weights_are_handed_over_while_requests_are_under_way(
    request: pytest.FixtureRequest, pretrained: Path, tmp_path: Path, parameters: str
) -> None:
    server: VllmServer = request.getfixturevalue("sampling_server" if parameters == "lora" else "scoring_server")
    settings = StudentConfig.model_validate({"parameters": parameters, "dtype": "float32", "max_length": 512})
    student = load_student(str(pretrained), settings, torch.device("cpu"), seed=0)
    engines = VllmEngines(student, OnPolicyConfig(engine_url=server.url, max_concurrent=4), tmp_path / "weights")
    prompt = render(student.tokenizer, [{"role": "user", "content": "Count to 100."}], None, add_generation_prompt=True)
    size = 0.05 if parameters == "lora" else 0.006
    with closing(engines), engines.engine(0) as engine:
        for version in (1, 2):
            engine.submit(GenerationRequest(prompt, 480, seed=version))
            while not engines._pool.servers[0].num_under_way:
                time.sleep(0.01)
            time.sleep(2.0)
            old = score(student)
            disturb(student, size, seed=version)
            with engines.engine(version):
                assert engines._pool.servers[0].num_under_way, "it is still under way"
            done: list[tuple[int, Generation]] = []
            while not done:
                done = engine.step()
            [(_, made)] = done
            assert set(made.policy_versions) == {version - 1}, "as old as its beginning"
            ids, sampled = [*prompt, *made.completion_ids], np.array(made.logprobs)
            off_old, off_new = (np.abs(sampled - of(ids)[len(prompt) :]) for of in (old, score(student)))
            assert off_old[:8].mean() < 0.1
            assert (off_old if parameters == "lora" else off_new)[-40:].mean() < 0.1
            assert (off_new if parameters == "lora" else off_old)[-40:].mean() > 0.2, "the weights differ"


def score(student: Student) -> Callable[[list[int]], np.ndarray]:
    """Return the log-probabilities that the student, as it is now, gives to the tokens of a sequence."""
    frozen = copy.deepcopy(student.causal_lm)
    return lambda ids: np.array(score_tokens(frozen, [ids])[0])


def test_a_full_context_and_a_lowered_limit_are_told(
    scoring_server: VllmServer, pretrained: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(pretrained)

    def prompt_of(num_tokens: int) -> str:
        def size(text: str) -> int:
            chat = [{"role": "user", "content": text}]
            return len(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))

        text = " dog" * (num_tokens - size(""))
        assert size(text) == num_tokens
        return text

    rows = [{"prompt": prompt_of(size)} for size in (CONTEXT - 5, CONTEXT, CONTEXT + 1)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sections = {
        "teacher": {"model": MODEL, "base_url": scoring_server.url},
        "rollouts": {"max_tokens": 64, "temperature": 0.0},
        "prompts": {"source": str(tmp_path / "prompts.jsonl"), "held_out_fraction": 0.0},
    }
    file = config_file(tmp_path, pretrained, **sections)
    subprocess.run(
        [STILLHOUSE, "generate", file, "--set", f"runtime.store={tmp_path / 'store'}"],
        env={**os.environ, "OPENAI_API_KEY": "none"},
        check=False,
        capture_output=True,
    )
    lines = [
        json.loads(line)
        for part in (tmp_path / "store" / "artifacts" / "rollouts").glob("*/trajectories.jsonl")
        for line in part.read_text().splitlines()
    ]
    assert sorted(line["stop_reason"] for line in lines) == ["context_overflow", "context_overflow", "length"]
    [cut] = [line for line in lines if line["stop_reason"] == "length"]
    assert "--max-model-len" in cut["error"]["message"]
