import json
import random

import numpy as np
import torch

from stillhouse.training.loop.checkpoints.random_state import (
    random_state,
    restore_random_state,
    restore_random_state_of_rank,
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
