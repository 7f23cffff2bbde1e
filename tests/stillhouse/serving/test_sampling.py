import math

import pytest
import torch

from stillhouse.serving.sampling import Draw, PickSteps, pick_tokens, read_picks

LOGITS = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()


def pick(logits: torch.Tensor, draws: list[Draw]) -> tuple[list[int], list[float]]:
    fields = torch.tensor(draws, dtype=torch.float64).T
    return read_picks(pick_tokens(logits, fields, PickSteps.of(draws)))


def picks(uniforms: list[float], *, temperature: float = 1.0, top_p: float = 1.0) -> list[int]:
    return pick(LOGITS.expand(len(uniforms), -1), [Draw(uniform, temperature, top_p) for uniform in uniforms])[0]


def test_a_uniform_number_is_inverted_through_the_cumulative_distribution() -> None:
    assert picks([0.0, 0.05, 0.15, 0.49, 0.55, 0.65, 0.75, 1 - 2**-53]) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_frequencies_are_those_of_the_tempered_distribution() -> None:
    grid = [(i + 0.5) / 1000 for i in range(1000)]
    counts = torch.tensor(picks(grid, temperature=0.5)).bincount(minlength=4)
    expected = (LOGITS / 0.5).softmax(0) * 1000
    assert counts.tolist() == pytest.approx(expected.tolist(), abs=1.5)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, {1}), (0.39, {1}), (0.5, {1, 3}), (0.75, {1, 2, 3}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_set_that_reaches_its_mass(top_p: float, kept: set[int]) -> None:
    assert set(picks([(i + 0.5) / 100 for i in range(100)], top_p=top_p)) == kept


def test_rows_are_independent_and_each_has_its_own_settings() -> None:
    tokens, logprobs = pick(LOGITS.expand(3, -1), [Draw(0.99, 0.0), Draw(0.99, 1.0, 0.39), Draw(0.0, 2.0)])
    assert tokens == [1, 1, 0]
    tempered = (LOGITS / 2).log_softmax(0)[0].item()
    assert logprobs == pytest.approx([math.log(0.4), math.log(0.4), tempered])


@pytest.mark.parametrize("size", [3, 9000])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_token_without_probability_is_never_picked(size: int, place: int) -> None:
    logits = torch.full((1, size), -math.inf)
    logits[0, place] = 0.0
    for uniform in (0.0, 1 - 2**-53):
        assert pick(logits, [Draw(uniform)])[0] == [place % size]


def test_a_vocabulary_searched_in_chunks_gives_what_one_cumulative_distribution_does() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(400, 10_007, generator=generator)
    uniforms = torch.rand(400, dtype=torch.float64, generator=generator)
    cumulative = logits.double().softmax(-1).cumsum(-1)
    tokens, logprobs = pick(logits, [Draw(uniform) for uniform in uniforms.tolist()])
    before = torch.cat([torch.zeros(400, 1), cumulative], dim=1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    after = cumulative.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert ((before - 1e-6 <= uniforms) & (uniforms < after + 1e-6)).all()
    assert (torch.tensor(tokens) >= 8192).any(), "the last chunk, which is shorter, is searched too"
    expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert logprobs == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize("size", [4, 9000])
def test_logits_that_are_no_numbers_are_named(size: int) -> None:
    logits = torch.zeros(3, size)
    logits[1, 2] = math.nan
    with pytest.raises(FloatingPointError, match="1 of 3"):
        pick(logits, [Draw(0.5)] * 3)
