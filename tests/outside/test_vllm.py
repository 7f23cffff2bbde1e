"""A real vLLM server writes rollouts, scores, and samples for the student; also one that is killed meanwhile."""

import copy
import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from stillhouse.chat.refs import resolve_model
from stillhouse.chat.template import render
from stillhouse.config import Divergence, OnPolicyConfig, OnPolicyTeacher, RuntimeConfig, StudentConfig
from stillhouse.errors import EndpointError
from stillhouse.inference.top_tokens import TopTokens
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.score import score_tokens
from stillhouse.store.records import read_trajectories
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.vllm import VllmEngines
from stillhouse.training.on_policy.sampling.vllm_engine import body_of, read_generation
from stillhouse.training.on_policy.sampling.vllm_server import VllmServer as SamplingServer
from stillhouse.training.on_policy.teachers.served.connect import connect
from stillhouse.types import Sample, StopReason
from tests.outside.interpreted_triton import interpreted_triton
from tests.outside.vllm_server import CONTEXT, MODEL, VllmServer
from tests.stillhouse.training.trainings import disturb

pytestmark = [pytest.mark.outside, pytest.mark.vllm, pytest.mark.timeout(1800)]

STILLHOUSE = Path(sys.executable).with_name("stillhouse")
COUNTRIES = ("France", "Italy", "Spain", "Poland", "Norway", "Japan", "Chile", "Kenya", "Egypt", "Cuba", "Peru", "Fiji")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"prompt": f"What is the capital of {country}?"} for country in COUNTRIES]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


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


def teacher(server: VllmServer) -> dict[str, Any]:
    return {"name": "served", "kind": "vllm", "model": MODEL, "base_url": server.url}


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
        "on_policy": on_policy(algorithm="divergence", max_turns=4, max_tokens=48, **on_policy_settings),
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


@pytest.mark.parametrize("parameters", ["lora", "full"])
def test_a_sampler_of_the_run_that_is_killed_is_started_again_and_changes_no_weights(
    served_by_vllm: dict[str, Any], tmp_path: Path, parameters: str
) -> None:
    sections = small_distillation("embedded:teacher", "embedded:student", served_by_vllm)
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
