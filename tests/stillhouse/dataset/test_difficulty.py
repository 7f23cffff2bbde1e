import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stillhouse.chat.samples import render_samples
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.dataset.difficulty import (
    StudentScorer,
    pass_rates,
    student_prompts,
    student_rollouts,
    student_scorer,
    write_difficulty,
)
from stillhouse.errors import ConfigError
from stillhouse.serving.models import load_model
from stillhouse.types import Model, PromptMetadata, StopReason, Trajectory

Make = Callable[..., Trajectory]
STUDENT = "embedded:student"
RUNTIME = RuntimeConfig(device="cpu", num_threads=1)


def model(ref: str) -> Model:
    return Model(name="base", ref=ref, fingerprint=ref)


@pytest.fixture(scope="module")
def scorer() -> Iterator[StudentScorer]:
    with student_scorer(model(STUDENT), RUNTIME) as shared:
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


def test_nll_is_the_mean_cross_entropy_of_supervised_tokens(
    scorer: StudentScorer, tokenizer: PreTrainedTokenizerBase, make_trajectory: Make
) -> None:
    rows = [make_trajectory(number, answer="5" * (1 + 7 * number)) for number in range(5)]
    model = load_model(STUDENT, device="cpu", num_threads=1)
    expected = [plain_nll(model, tokenizer, row) for row in rows]
    assert asyncio.run(scorer.nll(rows, 4096)) == pytest.approx(expected, rel=1e-4)


def test_a_row_scores_the_same_among_any_others_and_in_any_chunk(scorer: StudentScorer, make_trajectory: Make) -> None:
    rows = [make_trajectory(number % 3, answer=f"It is {number}.") for number in range(70)]
    together = asyncio.run(scorer.nll(rows, 4096))
    alone = [asyncio.run(scorer.nll([row], 4096))[0] for row in (rows[0], rows[69])]
    assert [together[0], together[69]] == pytest.approx(alone, rel=1e-4)


def test_bad_rows_have_none(scorer: StudentScorer, tokenizer: PreTrainedTokenizerBase, make_trajectory: Make) -> None:
    good = make_trajectory()
    length = len(render_samples(tokenizer, good.messages, good.tools)[0].token_ids)
    cut = make_trajectory(stop_reason=StopReason.LENGTH)
    refused = make_trajectory(messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": 5}])
    nothing_said = make_trajectory(messages=[{"role": "user", "content": "x"}])
    found = asyncio.run(scorer.nll([cut, refused, nothing_said, good], length))
    assert found[:3] == [None, None, None]
    assert found[3] is not None
    assert asyncio.run(scorer.nll([good], length - 1)) == [None]


def test_users_at_the_same_time_share_the_weights_and_the_last_one_frees_them(make_trajectory: Make) -> None:
    runtime = RuntimeConfig(device="cpu", num_threads=1)
    with student_scorer(model("embedded:teacher"), runtime) as one:
        with student_scorer(model("embedded:teacher"), runtime) as other:
            assert one is other
            asyncio.run(other.nll([make_trajectory()], 4096))
        assert one.loaded is not None
    assert one.loaded is None


def test_a_student_that_is_not_there_is_told_of(make_trajectory: Make) -> None:
    with student_scorer(model("embedded:nobody"), RUNTIME) as missing, pytest.raises(ConfigError, match="nobody"):
        asyncio.run(missing.nll([make_trajectory()], 4096))


def test_each_distinct_prompt_is_asked_once_with_its_own_tools_and_system_prompt(make_trajectory: Make) -> None:
    first = make_trajectory(0)
    with_system = make_trajectory(1)
    with_system.messages.insert(0, {"role": "system", "content": "Be brief."})
    prompts = student_prompts([first, replace(first, sample_index=1), replace(with_system, tools=[])])
    assert list(prompts) == ["prompt-0", "prompt-1"]
    assert [message["role"] for message in prompts["prompt-1"].messages] == ["system", "user"]
    assert prompts["prompt-0"].messages == first.messages[:1]
    assert (prompts["prompt-0"].tools, prompts["prompt-1"].tools) == (["calculator"], [])
    assert prompts["prompt-0"].id != prompts["prompt-1"].id


def test_the_rate_is_the_share_of_right_answers_among_the_verified_ones(make_trajectory: Make) -> None:
    prompts = student_prompts([make_trajectory(number) for number in range(3)])

    def answer(number: int, text: str, stop_reason: StopReason = StopReason.ANSWERED) -> Trajectory:
        return make_trajectory(number, prompt_id=prompts[f"prompt-{number}"].id, answer=text, stop_reason=stop_reason)

    sampled = [
        answer(0, "5"),
        answer(0, "6"),
        answer(0, "It is 5."),
        answer(0, "5", StopReason.LENGTH),
        answer(0, "5", StopReason.ERROR),
        answer(1, "5"),
        answer(2, "5", StopReason.TIMEOUT),
    ]
    expected = {"prompt-0": "5", "prompt-1": None, "prompt-2": "5"}
    metadata = {name: PromptMetadata(name, text, None, "numeric", {}) for name, text in expected.items()}
    assert pass_rates(sampled, prompts, metadata) == {"prompt-0": 0.5}
    assert pass_rates(sampled, prompts, {}) == {}


def test_the_student_is_sampled_within_the_bounds_of_the_teacher() -> None:
    config = student_rollouts(RolloutsConfig(max_tokens=77, max_turns=3, temperature=0.0, num_samples=9), 4)
    assert (config.num_samples, config.max_tokens, config.max_turns, config.temperature) == (4, 77, 3, 1.0)


def test_the_file_has_a_row_for_each_trajectory_in_order(tmp_path: Path) -> None:
    path = tmp_path / "difficulty.parquet"
    assert write_difficulty(path, [(1.5, None), (None, 0.25), (None, None)]) == 3
    assert pq.read_table(path).to_pydict() == {
        "student_nll": [1.5, None, None],
        "student_pass_rate": [None, 0.25, None],
    }
