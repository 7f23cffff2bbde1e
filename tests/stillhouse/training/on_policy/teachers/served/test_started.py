"""Teachers whose server the run starts, here as vLLM is started; with the real one: `tests/outside`."""

from itertools import compress
from pathlib import Path

import httpx
import pytest

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import Divergence, OnPolicyTeacher, RuntimeConfig
from stillhouse.errors import ConfigError, EndpointError
from stillhouse.serving.models import load_model
from stillhouse.serving.score import score_tokens
from stillhouse.training.on_policy.teachers.served.connect import connect
from stillhouse.training.on_policy.teachers.served.teacher import ServedTeacher
from stillhouse.types import Sample
from tests.stillhouse.training.vllm_stand_in import stand_in_python


def connected(folder: Path, python: str) -> ServedTeacher:
    settings = OnPolicyTeacher(name="near", kind="vllm", model="embedded:teacher", top_k=5)
    runtime = RuntimeConfig(store=str(folder), device="cpu", vllm_python=python)
    divergence = (Divergence(kind="reverse_kl"),)
    return connect(settings, 1.0, 1.0, load_tokenizer("embedded:student"), None, runtime, divergence=divergence)


@pytest.mark.slow
def test_a_server_is_started_for_a_teacher_without_an_address_and_ended_with_it(tmp_path: Path) -> None:
    teacher = connected(tmp_path, stand_in_python(tmp_path))
    request = Sample([5, 9, 40, 7], [False, True, False, True], "p")
    [scores] = teacher.start([request]).result()
    [known] = score_tokens(load_model("embedded:teacher", device="cpu"), [request.token_ids])
    assert scores.logprobs == pytest.approx(list(compress(known, request.loss_mask)), abs=1e-4)
    assert teacher.given is not None, "it scores the student's tokens as well"
    teacher.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(teacher.server.root)


def test_a_server_that_does_not_start_is_no_reason_to_train_without_the_teacher(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="no memory"):
        connected(tmp_path, stand_in_python(tmp_path, refuses="ValueError: no memory"))
    with pytest.raises(ConfigError, match=r"'near'.*base_url.*make vllm"):
        connected(tmp_path, str(tmp_path / "nothing"))
