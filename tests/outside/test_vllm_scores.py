"""A real vLLM server scores what a student samples and tells what a teacher finds probable."""

import json
import logging
import os
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stillhouse.chat.refs import resolve_model
from stillhouse.config import Divergence, OnPolicyTeacher, RuntimeConfig
from stillhouse.errors import EndpointError
from stillhouse.inference.top_tokens import TopTokens
from stillhouse.serving.generation import GenerationRequest
from stillhouse.store.records import read_trajectories
from stillhouse.training.on_policy.sampling.vllm_engine import body_of, read_generation
from stillhouse.training.on_policy.sampling.vllm_server import VllmServer as SamplingServer
from stillhouse.training.on_policy.teachers.served.connect import connect
from stillhouse.types import Sample, StopReason
from tests.outside.interpreted_triton import interpreted_triton
from tests.outside.vllm_server import MODEL, VllmServer
from tests.outside.vllm_trainings import (
    COUNTRIES,
    STILLHOUSE,
    config_file,
    metrics,
    on_policy,
    train,
    train_and_kill,
    weights,
)

pytestmark = [pytest.mark.outside, pytest.mark.vllm, pytest.mark.timeout(1800)]


def teacher(server: VllmServer) -> dict[str, Any]:
    return {"name": "served", "kind": "vllm", "model": MODEL, "base_url": server.url}


def test_a_scoring_server_that_is_killed_amid_a_training_changes_none_of_its_weights(
    scoring_server: VllmServer, pretrained: Path, folder: Path
) -> None:
    settings = on_policy(teachers=[teacher(scoring_server)])
    file = config_file(folder, pretrained, on_policy=settings)
    undisturbed = train(file, folder / "undisturbed")
    # The student is its own teacher: what is left is rounding, a token's share of which is far above the mean's.
    assert all(abs(kl) < 0.05 for kl in metrics(undisturbed, "on_policy/teacher_kl"))
    killed = train_and_kill(file, folder / "killed", scoring_server, after_step=2)
    assert weights(killed) == weights(undisturbed)


def test_the_most_probable_tokens_of_given_ones_are_those_of_the_model(
    scoring_server: VllmServer, pretrained: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    settings = OnPolicyTeacher(**teacher(scoring_server), top_k=20)
    served = connect(settings, 1.0, 1.0, tokenizer, None, RuntimeConfig(store=str(tmp_path)))
    chats = [[{"role": "user", "content": f"What is the capital of {country}?"}] for country in COUNTRIES]
    rows = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    requests = [Sample(row, [place > 2 for place in range(len(row))], "p") for row in rows]
    scores = served.start(requests).result()
    served.close()
    model = AutoModelForCausalLM.from_pretrained(pretrained, dtype=torch.float32)
    for row, (_, top) in zip(rows, scores, strict=True):
        logprobs = model(torch.tensor([row])).logits[0].detach().log_softmax(-1)[2:-1]
        assert top is not None
        known = logprobs.gather(1, torch.from_numpy(top.ids_NK).long())
        # In nats, of a server that computes in bfloat16.
        assert np.abs(known.numpy() - top.logprobs_NK).mean() < 0.1
        best = logprobs.topk(20).indices.numpy()
        overlap = [len(set(one) & set(other)) / 20 for one, other in zip(best, top.ids_NK, strict=True)]
        assert np.mean(overlap) > 0.9
        mass = np.exp(top.logprobs_NK.astype(float)).sum(axis=1) + np.exp(top.log_tail_N.astype(float))
        assert mass == pytest.approx(np.ones(len(mass)), abs=5e-3)


@pytest.fixture
def embedded_teacher_server(vllm: Path, tmp_path: Path) -> Iterator[VllmServer]:
    """Yield a server that scores given ids; on a CPU no model of use is fast enough."""
    options = ["--enable-scale-out", "--dtype", "float32", "--max-model-len", "512", "--max-logprobs", "-1"]
    embedded = Path(resolve_model("embedded:teacher"))
    with VllmServer(vllm, embedded, tmp_path, options, interpreted_triton(tmp_path / "triton")) as server:
        yield server


def test_tokens_that_the_server_is_given_are_scored_as_the_model_scores_them(
    embedded_teacher_server: VllmServer, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("embedded:student"))
    settings = OnPolicyTeacher(**teacher(embedded_teacher_server), top_k=25)
    runtime, reverse = RuntimeConfig(store=str(tmp_path / "store")), (Divergence(kind="reverse_kl"),)
    served = connect(settings, 1.0, 1.0, tokenizer, None, runtime, divergence=reverse)
    assert served.given is not None
    model = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:teacher"), dtype=torch.float64)
    chance, requests = np.random.default_rng(0), []
    for length in (5, 17, 40):
        mask = [False, *(chance.random(length - 2) < 0.6).tolist(), True]
        best_NK = np.stack([chance.permutation(len(tokenizer))[:25] for _ in range(sum(mask))])
        row = chance.integers(len(tokenizer), size=length).tolist()
        requests.append(Sample(row, mask, "p", best_ids_NK=best_NK.astype(np.int32)))
    scores = served.start(requests).result()
    served.close()
    for request, (logprobs, top) in zip(requests, scores, strict=True):
        tokens, scored = torch.tensor([request.token_ids]), torch.tensor(request.loss_mask[1:])
        known = model(tokens).logits[0, :-1].detach().log_softmax(-1)[scored]
        assert top is not None
        given = known.gather(1, torch.from_numpy(top.ids_NK[:, :25]).long()).numpy()
        assert np.abs(given - top.logprobs_NK[:, :25]).max() < 1e-4
        best = [set(row) for row in known.topk(25).indices.tolist()]
        assert all(row <= set(seen) for row, seen in zip(best, top.ids_NK.tolist(), strict=True))
        assert logprobs == pytest.approx(known.gather(1, tokens[0, 1:][scored][:, None])[:, 0].tolist(), abs=1e-4)
    # What samples tells such tokens.
    prompt = requests[0].token_ids
    request = GenerationRequest(prompt, 12, seed=3, num_best=25)
    with closing(SamplingServer(embedded_teacher_server.url)) as server:
        sampled = read_generation(server.complete({"model": MODEL, **body_of(request)}), request)
    logits = model(torch.tensor([[*prompt, *sampled.completion_ids]])).logits[0, len(prompt) - 1 : -1]
    assert sampled.best_ids_NK is not None
    assert np.sort(sampled.best_ids_NK).tolist() == logits.topk(25).indices.sort().values.tolist()


def test_a_server_without_scale_out_gives_its_own_tokens(
    scoring_server: VllmServer, pretrained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = OnPolicyTeacher(**teacher(scoring_server), top_k=20)
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    runtime, reverse = RuntimeConfig(store=str(tmp_path)), (Divergence(kind="reverse_kl"),)
    served = connect(settings, 1.0, 1.0, tokenizer, None, runtime, divergence=reverse)
    served.close()
    assert served.given is None
    assert "--enable-scale-out" in caplog.text


def test_what_is_recorded_while_a_teacher_samples_is_the_models_and_all_that_sft_needs(
    scoring_server: VllmServer, pretrained: Path, folder: Path
) -> None:
    sections = {
        "teacher": {"model": MODEL, "base_url": scoring_server.url},
        "rollouts": {"record_top_k": 10, "temperature": 0.7, "max_tokens": 24},
        "sft": {"loss": "kl", "top_k": 10, "num_epochs": 1, "batch_size": 4},
    }
    file = config_file(folder, pretrained, **sections)
    command = [STILLHOUSE, "distill", file, "--set", f"runtime.store={folder / 'store'}"]
    done = subprocess.run(command, env={**os.environ, "OPENAI_API_KEY": "none"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    artifacts = folder / "store" / "artifacts"
    [manifest] = artifacts.glob("scores/*/manifest.json")
    facts = json.loads(manifest.read_text())["artifact"]["facts"]
    num_as_written = 0
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    model = AutoModelForCausalLM.from_pretrained(pretrained, dtype=torch.float32)
    [rollouts] = artifacts.glob("rollouts/*/trajectories.jsonl")
    for trajectory in read_trajectories(rollouts):
        prompt = tokenizer.apply_chat_template(trajectory.messages[:1], add_generation_prompt=True, return_dict=False)
        recorded = TopTokens.of_bytes(b64decode(str(trajectory.turns[0].top_logprobs)))
        assert recorded.spellings is None, "vLLM tells ids"
        ids = torch.tensor([[*prompt, *recorded.tokens_N.tolist()]])
        logprobs = model(ids).logits[0, len(prompt) - 1 : -1].detach().log_softmax(-1)
        known = logprobs.gather(1, torch.from_numpy(recorded.top.ids_NK.copy()).long())
        # At temperature 1, whatever it was sampled at; of a server that computes in bfloat16.
        assert np.abs(known.numpy() - recorded.top.logprobs_NK).mean() < 0.1
        # Now and then a word is sampled in other tokens than the tokenizer writes it in; no such row serves.
        written = tokenizer(trajectory.messages[-1]["content"], add_special_tokens=False)["input_ids"]
        is_as_written = [*written, tokenizer.eos_token_id] == recorded.tokens_N.tolist()
        num_as_written += is_as_written and trajectory.stop_reason is StopReason.ANSWERED
    assert facts["recorded_rows"] == num_as_written > 3
    assert facts["rows"] == num_as_written + facts.get("hard_rows", 0)


def test_more_tokens_than_the_server_gives_are_told_before_the_training(
    scoring_server: VllmServer, pretrained: Path, tmp_path: Path
) -> None:
    settings = OnPolicyTeacher(**teacher(scoring_server), top_k=100)
    with pytest.raises(EndpointError, match="--max-logprobs"):
        connect(settings, 1.0, 1.0, AutoTokenizer.from_pretrained(pretrained), None, RuntimeConfig(store=str(tmp_path)))
