import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from stillhouse.training.repeatability import (
    random_state,
    restore_random_state,
    restore_random_state_of_rank,
    use_fast_float32_products,
)


def draw() -> list[float]:
    return [torch.rand(1).item(), random.random(), float(np.random.rand()), random.gauss(), float(torch.randn(1))]


def test_every_generator_continues_from_what_a_file_of_json_holds():
    draw()
    text = json.dumps(random_state())
    expected = [draw(), draw()]
    restore_random_state(json.loads(text))
    assert [draw(), draw()] == expected


def test_each_rank_gets_its_own_state_and_a_new_rank_one_that_nobody_has():
    states = []
    for seed in (1, 2):
        for seed_all in (torch.manual_seed, random.seed, np.random.seed):
            seed_all(seed)
        states.append(random_state())
    drawn = []
    for rank in (0, 1, 2, 3, 2):
        restore_random_state_of_rank(states, rank)
        drawn.append(draw())
    for seed_all in (torch.manual_seed, random.seed, np.random.seed):
        seed_all(2)
    assert drawn[1] == draw()
    assert drawn[2] == drawn[4]
    for values in zip(*drawn[:4], strict=True):
        assert len(set(values)) == 4


@pytest.fixture(autouse=True)
def _precision_as_before() -> Iterator[None]:
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before


@pytest.mark.parametrize("shapes", [((64, 128), (128, 96)), ((3, 512), (512, 1000)), ((4, 32, 64), (4, 64, 32))])
def test_fast_products_keep_the_digits_of_float32(shapes: tuple[tuple[int, ...], tuple[int, ...]]):
    use_fast_float32_products()
    left, right = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in shapes)
    torch.testing.assert_close(left @ right, (left.double() @ right.double()).float(), rtol=1e-5, atol=1e-4)


def test_the_answer_is_what_was_set():
    assert use_fast_float32_products() is (torch.backends.mkldnn.matmul.fp32_precision == "bf16")
