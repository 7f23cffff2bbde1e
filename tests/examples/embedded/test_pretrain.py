import dataclasses
import random

import torch
from transformers import PreTrainedTokenizerFast

from examples.embedded.corpus import Row, draw_rows
from examples.embedded.pretrain import STUDENT, _loss, new_model, pretrain


def test_a_few_steps_learn_and_the_same_seed_gives_the_same_weights(tokenizer: PreTrainedTokenizerFast):
    recipe = dataclasses.replace(STUDENT, num_steps=4)
    rows = sorted(draw_rows(tokenizer, recipe.corpus, 100, random.Random(1)), key=lambda row: len(row.ids))[:24]
    first, second = new_model(recipe, tokenizer), new_model(recipe, tokenizer)
    untrained = _loss(first, rows).item()
    assert pretrain(first, rows, recipe) == pretrain(second, rows, recipe)
    assert _loss(first, rows).item() < untrained - 0.05
    assert all(map(torch.equal, first.parameters(), second.parameters()))


def test_loss_is_the_mean_over_trained_tokens_whatever_the_padding(tokenizer: PreTrainedTokenizerFast):
    model = new_model(STUDENT, tokenizer).eval()
    rows = sorted(draw_rows(tokenizer, "correct", 8, random.Random(2)), key=lambda row: len(row.ids))
    short, long = rows[0], rows[-1]
    weights = [sum(row.loss_mask) for row in (short, long)]
    apart = sum(_loss(model, [row]) * weight for row, weight in zip((short, long), weights, strict=True))
    torch.testing.assert_close(_loss(model, [short, long]), apart / sum(weights))


def test_what_is_not_trained_on_does_not_move_the_loss(tokenizer: PreTrainedTokenizerFast):
    model = new_model(STUDENT, tokenizer).eval()
    row = draw_rows(tokenizer, "correct", 1, random.Random(3))[0]
    # The last newline follows the last trained token: as a target it is masked, as an input it comes too late.
    assert row.loss_mask[-1] == 0
    altered = Row([*row.ids[:-1], 5], row.loss_mask)
    assert torch.equal(_loss(model, [row]), _loss(model, [altered]))
