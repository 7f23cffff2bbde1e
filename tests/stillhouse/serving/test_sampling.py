import math

import pytest
import torch

from stillhouse.serving.sampling import pick_tokens

LOGITS = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()


def picks(uniforms: list[float], *, temperature: float = 1.0, top_p: float = 1.0) -> list[int]:
    n = len(uniforms)
    return pick_tokens(LOGITS.expand(n, -1), [temperature] * n, [top_p] * n, uniforms).tokens


def test_a_uniform_number_is_inverted_through_the_cumulative_distribution() -> None:
    assert picks([0.0, 0.05, 0.15, 0.49, 0.55, 0.65, 0.75, 1 - 2**-53]) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_frequencies_are_those_of_the_tempered_distribution() -> None:
    grid = [(i + 0.5) / 1000 for i in range(1000)]
    counts = torch.tensor(picks(grid, temperature=0.5)).bincount(minlength=4)
    expected = (LOGITS / 0.5).softmax(0) * 1000
    assert counts.tolist() == pytest.approx(expected.tolist(), abs=1.5)


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.01, {1}), (0.39, {1}), (0.5, {1, 3}), (0.75, {1, 2, 3}), (1.0, {0, 1, 2, 3})],
)
def test_top_p_keeps_the_smallest_set_that_reaches_its_mass(top_p: float, kept: set[int]) -> None:
    assert set(picks([(i + 0.5) / 100 for i in range(100)], top_p=top_p)) == kept


def test_rows_are_independent_and_each_has_its_own_settings() -> None:
    result = pick_tokens(LOGITS.expand(3, -1), [0.0, 1.0, 2.0], [1.0, 0.39, 1.0], [0.99, 0.99, 0.0])
    assert result.tokens == [1, 1, 0]
    tempered = (LOGITS / 2).log_softmax(0)[0].item()
    assert result.logprobs == pytest.approx([math.log(0.4), math.log(0.4), tempered])


def test_a_token_without_probability_is_never_picked() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])
    for uniform in (0.0, 1 - 2**-53):
        assert pick_tokens(logits, [1.0], [1.0], [uniform]).tokens == [1]
