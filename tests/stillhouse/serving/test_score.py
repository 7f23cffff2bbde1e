from collections.abc import Callable

import pytest
from transformers import PreTrainedModel

import stillhouse.serving.score
from stillhouse.serving.score import score_tokens


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("microbatch_tokens", [1, 150, 16384])
def test_scores_are_teacher_forced_whatever_the_microbatch(
    model: PreTrainedModel,
    prompts: list[list[int]],
    teacher_forced: Callable[..., list[float]],
    temperature: float,
    microbatch_tokens: int,
) -> None:
    scores = score_tokens(model, prompts, temperature=temperature, microbatch_tokens=microbatch_tokens)
    for tokens, score in zip(prompts, scores, strict=True):
        assert score[0] == 0.0
        expected = teacher_forced(model, tokens[:1], tokens[1:], temperature) if len(tokens) > 1 else []
        assert score[1:] == pytest.approx(expected, abs=1e-4)


def test_logits_are_made_in_chunks_of_bounded_size(
    model: PreTrainedModel, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = score_tokens(model, prompts)
    monkeypatch.setattr(stillhouse.serving.score, "_LOGITS_ELEMENTS", 20_000)
    sizes: list[int] = []
    hook = model.get_output_embeddings().register_forward_hook(lambda _, __, output: sizes.append(output.numel()))
    try:
        chunked = score_tokens(model, prompts)
    finally:
        hook.remove()
    assert max(sizes) <= 20_000
    for left, right in zip(whole, chunked, strict=True):
        assert left == pytest.approx(right, abs=1e-5)


def test_no_sequences_give_no_scores(model: PreTrainedModel) -> None:
    assert score_tokens(model, []) == []
    assert score_tokens(model, [[], [5]]) == [[], [0.0]]
