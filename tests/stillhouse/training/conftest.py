import json
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from stillhouse.config import DatasetConfig, RuntimeConfig, StudentConfig, ToolsConfig
from stillhouse.embedded import embedded_path
from stillhouse.progress.state import Fact
from stillhouse.store import prompt_id
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.ranks import join_ranks
from stillhouse.types import Message, Prompt, PromptMetadata, StopReason, Trajectory, Turn
from tests.stillhouse.dataset.building import build_dataset
from tests.stillhouse.training.sections import on_policy_of, sft_of

NUM_PROMPTS = 16


@pytest.fixture(autouse=True)
def _torch_as_before() -> Iterator[None]:
    """A job makes torch deterministic for its whole process; here that process is the test's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Model ref of an untrained Qwen3 of 20,000 weights with the embedded tokenizer."""
    # Imported here and below: the ranks of `pair` import this file, too.
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from stillhouse.chat.tokenizer import load_tokenizer

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = load_tokenizer("embedded:student")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def mixture_model(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Model ref of an untrained Qwen3-MoE, otherwise like the tiny model; its experts have 49,152 weights."""
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    from stillhouse.chat.tokenizer import load_tokenizer

    folder = tmp_path_factory.mktemp("mixture")
    sizes = json.loads((Path(tiny_model) / "config.json").read_text()) | {"model_type": "qwen3_moe"}
    experts = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "initializer_range": 0.2}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(Qwen3MoeConfig(**(sizes | experts))).save_pretrained(folder)
    load_tokenizer(tiny_model).save_pretrained(folder)
    return str(folder)


COLON_TEMPLATE = """
{%- for m in messages -%}
    {%- if m.role == 'assistant' -%}
        {{- 'Assistant: ' -}}
        {%- if m.reasoning_content -%}{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' -}}{%- endif -%}
        {{- m.content or '' -}}
        {%- for c in m.tool_calls or [] -%}
            {{- '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson -}}
            {{- '}\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|endoftext|>\n\n' -}}
    {%- else -%}
        {{- m.role | capitalize + ': ' + m.content + '\n\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant: ' -}}{%- endif -%}
"""
"""Of a base model: it asks by `User: ... Assistant:` and ends turns with the end of a text."""


@pytest.fixture(scope="session")
def colon_student(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Model ref of the embedded student with the template and the end token of a base model."""
    from stillhouse.chat.tokenizer import load_tokenizer
    from stillhouse.serving.models import load_model

    folder = tmp_path_factory.mktemp("colon")
    load_model("embedded:student", device="cpu").save_pretrained(folder)
    tokenizer = load_tokenizer("embedded:student")
    tokenizer.chat_template, tokenizer.eos_token = COLON_TEMPLATE, "<|endoftext|>"
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session", params=["cap", "padded cap", "factor", "divisor"])
def scaled_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Model ref of an untrained Gemma 3, Gemma 2, Cohere or Granite, whose logits are capped or scaled."""
    from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, Gemma3TextConfig, GraniteConfig

    from stillhouse.chat.tokenizer import load_tokenizer

    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = load_tokenizer("embedded:student")
    small = {
        "vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 512,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None,
        "initializer_range": 0.2,
    }  # fmt: skip
    config = {
        "cap": Gemma3TextConfig(**small, final_logit_softcapping=3.0, query_pre_attn_scalar=8),
        "padded cap": Gemma2Config(**small, final_logit_softcapping=3.0, query_pre_attn_scalar=8),
        "factor": CohereConfig(**small, logit_scale=0.25),
        "divisor": GraniteConfig(**small, logits_scaling=4.0),
    }[request.param]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def full_student() -> StudentConfig:
    return StudentConfig(parameters="full", dtype="float32", max_length=512)


@pytest.fixture(scope="session")
def calculator() -> ToolsConfig:
    return ToolsConfig(builtin=("calculator",))


@pytest.fixture(scope="session")
def runtime() -> RuntimeConfig:
    return RuntimeConfig(device="cpu", num_threads=1)


@pytest.fixture(scope="session")
def embedded_rows() -> list[dict[str, Any]]:
    lines = embedded_path("prompts.jsonl").read_text().splitlines()[:NUM_PROMPTS]
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def prompts(embedded_rows: list[dict[str, Any]]) -> list[Prompt]:
    conversations: list[list[Message]] = [[{"role": "user", "content": row["prompt"]}] for row in embedded_rows]
    return [Prompt(prompt_id(messages, None), messages) for messages in conversations]


@pytest.fixture(scope="session")
def metadata(prompts: list[Prompt], embedded_rows: list[dict[str, Any]]) -> dict[str, PromptMetadata]:
    answers = [row["metadata"]["expected_answer"] for row in embedded_rows]
    return {
        prompt.id: PromptMetadata(prompt.id, answer, "shop", "numeric", {})
        for prompt, answer in zip(prompts, answers, strict=True)
    }


@pytest.fixture(scope="session")
def prompts_file(tmp_path_factory: pytest.TempPathFactory, prompts: list[Prompt]) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    write_jsonl(path, prompts)
    return path


@pytest.fixture(scope="session")
def metadata_file(tmp_path_factory: pytest.TempPathFactory, metadata: dict[str, PromptMetadata]) -> Path:
    path = tmp_path_factory.mktemp("metadata") / "metadata.jsonl"
    write_jsonl(path, metadata.values())
    return path


@pytest.fixture(scope="session")
def dataset_folder(tmp_path_factory: pytest.TempPathFactory, prompts: list[Prompt], calculator: ToolsConfig) -> Path:
    """Conversations of different lengths with tool calls, split into train and validation rows."""
    from stillhouse.tools.toolbox import Toolbox

    folder = tmp_path_factory.mktemp("dataset")
    schemas = Toolbox.from_config(calculator).schemas()
    trajectories = [
        Trajectory(
            rollout_key=prompt.id,
            prompt_id=prompt.id,
            sample_index=0,
            messages=conversation(prompt.messages[0], num_calls=1 + number % 3),
            tools=schemas,
            turns=[Turn("stop", {}, 0.1, "teacher")] * (2 + number % 3),
            stop_reason=StopReason.ANSWERED,
            model="teacher",
        )
        for number, prompt in enumerate(prompts)
    ]
    config = DatasetConfig(validation_fraction=0.3)
    build_dataset(trajectories, {}, config, tokenizer_ref="embedded:student", max_length=512, folder=folder)
    return folder


NewSftJob = Callable[..., TrainJob]


@pytest.fixture(scope="session")
def new_sft_job(
    tiny_model: str, full_student: StudentConfig, dataset_folder: Path, runtime: RuntimeConfig
) -> NewSftJob:
    """A training of the tiny model in `folder`, by the settings of `sft`; other fields take the place of these."""

    def make(folder: Path, sft: dict[str, Any], **fields: Any) -> TrainJob:
        usual = {
            "method": "sft",
            "student_ref": tiny_model,
            "student": full_student,
            "dataset_folder": dataset_folder,
            "work_dir": folder / "work",
            "output_dir": folder / "student",
            "runtime": runtime.model_copy(update={"store": str(folder / "store")}),
        }
        return TrainJob.model_validate({**usual, "sft": sft_of(sft), **fields})

    return make


@pytest.fixture(scope="session")
def new_on_policy_job(
    prompts_file: Path, metadata_file: Path, full_student: StudentConfig, calculator: ToolsConfig,
    runtime: RuntimeConfig,
) -> Callable[..., TrainJob]:  # fmt: skip
    """A training of the embedded student by the embedded teacher; other fields take the place of these."""

    def make(folder: Path, on_policy: dict[str, Any], **fields: Any) -> TrainJob:
        usual = {
            "method": "on_policy",
            "student_ref": "embedded:student",
            "teacher_ref": "embedded:teacher",
            "student": full_student,
            "prompts_file": prompts_file,
            "metadata_file": metadata_file,
            "tools": calculator,
            "work_dir": folder / "work",
            "output_dir": folder / "student",
            "runtime": runtime.model_copy(update={"store": str(folder / "store")}),
        }
        return TrainJob.model_validate({**usual, "on_policy": on_policy_of(on_policy), **fields})

    return make


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., str]]:
    """Serves the model of a ref under a name, as vLLM does with updates allowed, until the end of the module.

    With `scales_out` it scores given ids, too.
    """
    # Imported here: the ranks of `pair` import this file, too.
    from tests.stillhouse.training.vllm_stand_in import serving

    with ExitStack() as stack:
        yield lambda ref, name, **options: stack.enter_context(serving(ref, name, **options))


class Listener:
    """A progress that remembers its updates, and calls `action` with the steps done at each."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, int, int | None, dict[str, Fact]]] = []
        self.action: Callable[[int], object] = lambda done: None

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        self.updates.append((stage, done, total, facts))
        self.action(done)


@pytest.fixture
def listener() -> Listener:
    return Listener()


def conversation(question: Message, num_calls: int) -> list[Message]:
    messages: list[Message] = [question]
    for number in range(num_calls):
        call_id = f"call_{number}"
        arguments = json.dumps({"expression": f"{number} + 7"})
        messages.append(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": call_id, "type": "function", "function": {"name": "calculator", "arguments": arguments}}
                ],
            }
        )
        messages.append({"role": "tool", "tool_call_id": call_id, "content": str(number + 7)})
    messages.append({"role": "assistant", "content": f"The answer is {num_calls + 6}."})
    return messages


def answer_calls(rank: int, port: int, calls: Connection) -> None:
    """Joins as `rank` and answers calls until it is ended."""
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "pair",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    with join_ranks("cpu") as ranks:
        while True:
            function, args = calls.recv()
            try:
                calls.send((function(ranks, *args), None))
            except Exception:
                calls.send((None, traceback.format_exc()))


class Pair:
    """Two processes, forked once from one that has imported torch, that have joined as ranks."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["stillhouse.training.run_job", __name__])
        pipes = [context.Pipe() for _ in range(2)]
        self._calls = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(target=answer_calls, args=(rank, port, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What `function(ranks, *args)` returns in each rank."""
        for calls in self._calls:
            calls.send((function, args))
        results = []
        for calls in self._calls:
            assert calls.poll(60), "a rank waits for the other"
            result, error = calls.recv()
            assert error is None, error
            results.append(result)
        return results

    def stop(self) -> None:
        for process, calls in zip(self._processes, self._calls, strict=True):
            process.kill()
            process.join()
            calls.close()


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.stop()
