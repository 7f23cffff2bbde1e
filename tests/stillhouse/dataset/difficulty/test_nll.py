import asyncio
from collections.abc import Callable, Iterator

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stillhouse.chat.samples import render_samples
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import RuntimeConfig
from stillhouse.dataset.difficulty.nll import StudentScorer, student_scorer
from stillhouse.errors import ConfigError
from stillhouse.serving.models import load_model
from stillhouse.types import StopReason, Trajectory

MakeTrajectory = Callable[..., Trajectory]
STUDENT = "embedded:student"
RUNTIME = RuntimeConfig(device="cpu", num_threads=1)


@pytest.fixture(scope="module")
def scorer() -> Iterator[StudentScorer]:
    with student_scorer(STUDENT, RUNTIME) as shared:
        yield shared


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(STUDENT)


def plain_nll(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, trajectory: Trajectory) -> float:
    """By one forward pass of the whole row, and torch's own cross entropy."""
    sample = render_samples(tokenizer, trajectory.messages, trajectory.tools)[0]
    ids = torch.tensor([sample.token_ids])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, :-1].float()
    losses = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
    return losses[torch.tensor(sample.loss_mask[1:])].mean().item()


def test_it_is_the_mean_cross_entropy_of_the_supervised_tokens(
    scorer: StudentScorer, tokenizer: PreTrainedTokenizerBase, make_trajectory: MakeTrajectory
) -> None:
    rows = [make_trajectory(number, answer="5" * (1 + 7 * number)) for number in range(5)]
    model = load_model(STUDENT, device="cpu", num_threads=1)
    expected = [plain_nll(model, tokenizer, row) for row in rows]
    assert asyncio.run(scorer.nll(rows, 4096)) == pytest.approx(expected, rel=1e-4)


def test_a_row_scores_the_same_among_any_others_and_in_any_chunk(
    scorer: StudentScorer, make_trajectory: MakeTrajectory
) -> None:
    rows = [make_trajectory(number % 3, answer=f"It is {number}.") for number in range(70)]
    together = asyncio.run(scorer.nll(rows, 4096))
    alone = [asyncio.run(scorer.nll([row], 4096))[0] for row in (rows[0], rows[69])]
    assert [together[0], together[69]] == pytest.approx(alone, rel=1e-4)


def test_a_surprising_answer_scores_higher_than_the_usual_one(
    scorer: StudentScorer, make_trajectory: MakeTrajectory
) -> None:
    usual, odd = asyncio.run(
        scorer.nll([make_trajectory(answer="5"), make_trajectory(answer="zq xv jk qz wq kx")], 4096)
    )
    assert usual is not None
    assert odd is not None
    assert odd > usual


def test_rows_that_cannot_be_trained_on_have_none(
    scorer: StudentScorer, tokenizer: PreTrainedTokenizerBase, make_trajectory: MakeTrajectory
) -> None:
    good = make_trajectory()
    length = len(render_samples(tokenizer, good.messages, good.tools)[0].token_ids)
    cut = make_trajectory(stop_reason=StopReason.LENGTH)
    refused = make_trajectory(messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": 5}])
    nothing_said = make_trajectory(messages=[{"role": "user", "content": "x"}])
    found = asyncio.run(scorer.nll([cut, refused, nothing_said, good], length))
    assert found[:3] == [None, None, None]
    assert found[3] is not None
    assert asyncio.run(scorer.nll([good], length - 1)) == [None]


def test_users_at_the_same_time_share_the_weights_and_the_last_one_frees_them(make_trajectory: MakeTrajectory) -> None:
    runtime = RuntimeConfig(device="cpu", num_threads=1)
    with student_scorer("embedded:teacher", runtime) as one:
        with student_scorer("embedded:teacher", runtime) as other:
            assert one is other
            asyncio.run(other.nll([make_trajectory()], 4096))
        assert one.is_loaded
    assert not one.is_loaded


def test_a_student_that_is_not_there_is_told_of(make_trajectory: MakeTrajectory) -> None:
    with student_scorer("embedded:nobody", RUNTIME) as missing, pytest.raises(ConfigError, match="nobody"):
        asyncio.run(missing.nll([make_trajectory()], 4096))
