import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.batches.credit import with_weights
from stillhouse.training.on_policy.scored import ScoredSample

Losses = list[list[float]]
MAX_TOKENS = 11
MODES: dict[str, Callable[[Losses], float]] = {
    "token_mean": lambda rows: sum(map(sum, rows)) / sum(map(len, rows)),
    "sequence_mean_token_mean": lambda rows: sum(sum(row) / len(row) for row in rows) / len(rows),
    "sequence_mean_token_sum": lambda rows: sum(map(sum, rows)) / len(rows),
    "constant": lambda rows: sum(map(sum, rows)) / (len(rows) * MAX_TOKENS),
    "token_sum": lambda rows: sum(map(sum, rows)),
}


@pytest.mark.parametrize("mode", MODES)
def test_weights_make_the_trainers_sum_each_way_of_aggregating_however_the_batch_is_split(mode: str):
    draw = random.Random(3)
    counts = [3, 0, 1, 7, 2]
    losses = [[draw.uniform(-1, 1) for _ in range(count)] for count in counts]
    samples = [
        ScoredSample(token_ids=[0] * (1 + count), loss_mask=[False] + [True] * count, prompt_id=str(index))
        for index, count in enumerate(counts)
    ]
    made = with_weights(samples, OnPolicyConfig(aggregation=mode, max_tokens=MAX_TOKENS))  # type: ignore[arg-type]
    assert [replace(sample, weight=1.0) for sample in made] == samples
    sums = [sample.weight * sum(row) for sample, row in zip(made, losses, strict=True)]
    expected = MODES[mode]([row for row in losses if row])
    for split in range(len(sums)):
        # What the trainer does with two microbatches.
        total = sum(sums[:split]) / sum(counts) + sum(sums[split:]) / sum(counts)
        assert total == pytest.approx(expected)
