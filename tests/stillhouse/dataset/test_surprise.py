"""How surprised the teacher is by rows, recorded or scored."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stillhouse.chat.samples import render_samples
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import RuntimeConfig
from stillhouse.dataset.surprise import TeacherSurprise
from stillhouse.inference.scoring.ledger import LEDGER
from stillhouse.inference.scoring.segments import find_keys
from stillhouse.inference.top_tokens import read_top_tokens
from stillhouse.serving.models import load_model
from stillhouse.testing.logprobs import token_logprobs
from stillhouse.types import Model, StopReason, Trajectory

MakeTrajectory = Callable[..., Trajectory]
REF = "embedded:teacher"
TEACHER = Model(name="teacher", ref=REF, fingerprint="teacher")
QUESTION = {"role": "user", "content": "What is 2 + 3?"}


@pytest.fixture
def runtime(tmp_path: Path) -> RuntimeConfig:
    return RuntimeConfig(store=str(tmp_path / "store"), device="cpu", num_threads=1)


@pytest.fixture
def surprise(runtime: RuntimeConfig) -> Iterator[TeacherSurprise]:
    with closing(TeacherSurprise(TEACHER, runtime)) as made:
        yield made


@pytest.fixture
def answered(make_trajectory: MakeTrajectory) -> Callable[[str], Trajectory]:
    def make(answer: str) -> Trajectory:
        messages = [QUESTION, {"role": "assistant", "content": answer}]
        return replace(make_trajectory(), messages=messages, tools=[], stop_reason=StopReason.ANSWERED)

    return make


def recorded(trajectory: Trajectory) -> Trajectory:
    """With turns whose tokens had a probability of 3/4 each."""
    top = read_top_tokens(token_logprobs([b"It", b" is"], 4), 4)
    assert top is not None
    return replace(trajectory, turns=[replace(turn, top_logprobs=top.pack()) for turn in trajectory.turns])


def test_a_row_that_was_recorded_needs_no_teacher(
    runtime: RuntimeConfig, answered: Callable[[str], Trajectory]
) -> None:
    rows = [recorded(answered("It is 5.")), answered("It is 5.")]
    assert TeacherSurprise(None, runtime).measure(rows) == [pytest.approx(-math.log(0.75)), None]
    assert not Path(runtime.store, LEDGER).exists()


def test_any_other_row_is_scored_over_the_assistants_tokens(
    surprise: TeacherSurprise, answered: Callable[[str], Trajectory]
) -> None:
    row = answered("It is 5.")
    tokenizer, model = load_tokenizer(REF), load_model(REF, device="cpu", num_threads=1)
    [sample] = render_samples(tokenizer, row.messages, [])
    with torch.no_grad():
        logprobs = model(torch.tensor([sample.token_ids])).logits[0].log_softmax(-1)
    targets = [place for place, is_target in enumerate(sample.loss_mask) if is_target]
    expected = -sum(float(logprobs[place - 1, sample.token_ids[place]]) for place in targets) / len(targets)
    assert surprise.measure([row]) == [pytest.approx(expected, abs=1e-5)]


def test_rows_without_an_answer_or_beyond_the_teachers_context_are_not_measured(
    surprise: TeacherSurprise, answered: Callable[[str], Trajectory]
) -> None:
    cut = replace(answered("It"), stop_reason=StopReason.LENGTH)
    values = surprise.measure([cut, answered("zqx " * 5000), answered("It is 5.")])
    assert values[:2] == [None, None]
    assert values[2] is not None


def test_what_was_scored_is_not_scored_again(runtime: RuntimeConfig, answered: Callable[[str], Trajectory]) -> None:
    rows = [answered(f"It is {number}.") for number in range(3)]
    values = []
    for _ in range(2):
        with closing(TeacherSurprise(TEACHER, runtime)) as surprise:
            values.append(surprise.measure(rows))
    assert values[0] == values[1]
    [file] = Path(runtime.store).glob(f"{LEDGER}/*/*.arrows")
    assert len(list(find_keys(file))) == 3
