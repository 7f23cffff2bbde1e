"""The student and its tokenizer, and jobs that train it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig
from stillhouse.training.job import TrainJob
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student


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
