"""The student and its tokenizer, and jobs that train it."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import end_token_id, next_turn_ids
from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import encode, load_tokenizer
from stillhouse.config import StudentConfig, ToolsConfig
from stillhouse.progress.state import Progress
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.on_policy.load import load_on_policy
from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Message, Prompt, PromptMetadata, StopReason, ToolSchema, Turn

_SMALL = {"prompts_per_step": 4, "num_steps": 2, "max_tokens": 64, "max_turns": 5}


@pytest.fixture(scope="session")
def student() -> Student:
    """The embedded student with all of its weights to train; no test leaves them changed."""
    config = StudentConfig(parameters="full", dtype="float32", max_length=512)
    return load_student("embedded:student", config, torch.device("cpu"), seed=0)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("embedded:student")


@pytest.fixture
def new_method(
    new_on_policy_job: Callable[..., TrainJob],
    metadata: dict[str, PromptMetadata],
    full_student: StudentConfig,
    tmp_path: Path,
) -> Iterator[Callable[..., OnPolicy]]:
    """Makes methods that start from the embedded student, each in a folder of its own unless one is given."""
    with ExitStack() as resources:

        def make(
            *,
            answers: dict[str, PromptMetadata] = metadata,
            system_prompt: str | None = None,
            student: StudentConfig = full_student,
            folder: Path | None = None,
            tools: ToolsConfig | None = None,
            rows: list[Prompt] | None = None,
            student_ref: str | None = None,
            progress: Progress | None = None,
            **settings: object,
        ) -> OnPolicy:
            folder = folder or Path(tempfile.mkdtemp(dir=tmp_path))
            files = {"metadata_file": answers.values(), "prompts_file": rows}
            fields: dict[str, Any] = {"tools": tools, "student_ref": student_ref}
            fields |= {name: folder / f"{name}.jsonl" for name, lines in files.items() if lines is not None}
            for name in files.keys() & fields.keys():
                write_jsonl(fields[name], files[name])
            fields = {name: value for name, value in fields.items() if value is not None}
            fields |= {"student": student, "system_prompt": system_prompt, "work_dir": folder}
            job = new_on_policy_job(folder, _SMALL | settings, **fields)
            trained = load_student(job.student_ref, student, torch.device("cpu"), seed=0)
            return load_on_policy(job, trained, NoListener(), nullcontext, resources, progress)

        yield make


def written(message: Message) -> str:
    """What a student writes for a message, in the form that is parsed and that both templates have."""
    text = f"<think>\n{reasoning}\n</think>\n\n" if (reasoning := message.get("reasoning_content")) else ""
    text += message.get("content") or ""
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        text += f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    return text


@pytest.fixture(scope="session")
def sampled() -> Callable[..., SampledTrajectory]:
    """Makes the trajectory in which a student wrote the last `num_turns` assistant messages of a conversation."""

    def make(
        tokenizer: PreTrainedTokenizerBase,
        messages: Sequence[Message],
        tools: list[ToolSchema] | None = None,
        *,
        num_turns: int,
        is_cut_off: bool = False,
        write: Callable[[Message], str] = written,
    ) -> SampledTrajectory:
        places = [place for place, message in enumerate(messages) if message["role"] == "assistant"][-num_turns:]
        ids = render(tokenizer, messages[: places[0]], tools, add_generation_prompt=True)
        mask = [False] * len(ids)
        for place, following in zip(places, [*places[1:], None], strict=True):
            turn = encode(tokenizer, write(messages[place]))
            turn += [] if is_cut_off and following is None else [end_token_id(tokenizer)]
            between: list[int] = []
            if following is not None:
                replies = messages[place + 1 : following]
                between = next_turn_ids(tokenizer, turn, messages[: place + 1], replies, tools)
            ids += turn + between
            mask += [True] * len(turn) + [False] * len(between)
        turns = [Turn("stop", {}, None, "student")] * num_turns
        return SampledTrajectory(
            "key", "p", 0, list(messages), tools or [], turns, StopReason.ANSWERED, "student", token_ids=ids,
            loss_mask=mask, sampling_logprobs=[-1.0 * is_sampled for is_sampled in mask],
        )  # fmt: skip

    return make
