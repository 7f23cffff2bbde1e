"""The student and its tokenizer, and jobs that train it."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig, ToolsConfig
from stillhouse.progress.state import Progress
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.on_policy.load import load_on_policy
from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.types import Prompt, PromptMetadata

_SMALL = {"prompts_per_step": 4, "num_steps": 2, "max_tokens": 64, "max_turns": 5}


@pytest.fixture(scope="session")
def student() -> Student:
    """The embedded student with all of its weights to train; no test leaves them changed."""
    config = StudentConfig(parameters="full", dtype="float32", max_length=512)
    return load_student("embedded:student", config, torch.device("cpu"), seed=0)


@pytest.fixture
def new_job(prompts_file: Path, metadata_file: Path, runtime: RuntimeConfig, tmp_path: Path) -> Callable[..., TrainJob]:
    """Makes on-policy jobs of the embedded student and teacher."""

    def make(settings: OnPolicyConfig, folder: Path = tmp_path, **fields: Any) -> TrainJob:
        paths = {"prompts_file": prompts_file, "metadata_file": metadata_file}
        paths |= {"work_dir": folder, "output_dir": folder / "student"}
        refs = {"student_ref": "embedded:student", "teacher_ref": "embedded:teacher"}
        stored = runtime.model_copy(update={"store": str(tmp_path / "store")})
        return TrainJob(method="on_policy", on_policy=settings, runtime=stored, **{**refs, **paths, **fields})

    return make


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("embedded:student")


@pytest.fixture
def new_method(
    new_job: Callable[..., TrainJob],
    metadata: dict[str, PromptMetadata],
    full_student: StudentConfig,
    calculator: ToolsConfig,
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
            tools: ToolsConfig = calculator,
            rows: list[Prompt] | None = None,
            student_ref: str | None = None,
            progress: Progress | None = None,
            **settings: object,
        ) -> OnPolicy:
            folder = folder or Path(tempfile.mkdtemp(dir=tmp_path))
            fields: dict[str, Any] = {"student": student, "tools": tools, "system_prompt": system_prompt}
            fields["metadata_file"] = folder / "metadata.jsonl"
            write_jsonl(fields["metadata_file"], answers.values())
            if student_ref is not None:
                fields["student_ref"] = student_ref
            if rows is not None:
                fields["prompts_file"] = folder / "prompts.jsonl"
                write_jsonl(fields["prompts_file"], rows)
            job = new_job(OnPolicyConfig.model_validate(_SMALL | settings), folder, **fields)
            trained = load_student(job.student_ref, student, torch.device("cpu"), seed=0)
            return load_on_policy(job, trained, NoListener(), nullcontext, resources, progress)

        yield make
