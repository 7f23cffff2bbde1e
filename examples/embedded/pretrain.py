"""Training of an embedded model from nothing: plain next-token loss on assistant tokens.

Dimension legend: B batch, T time, V vocabulary, H hidden. This is the recipe of two models, not the trainer of
`stillhouse.training`: it knows neither checkpoints nor adapters.
"""

import logging
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from examples.embedded.corpus import CorpusKind, Row
from examples.embedded.tokenizer import MAX_POSITIONS

logger = logging.getLogger(__name__)

LEARNING_RATE: Final = 3e-3
BATCH_SIZE: Final = 32
_WARMUP_STEPS: Final = 100
_BATCHES_PER_BUCKET: Final = 16


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    corpus: CorpusKind
    num_layers: int
    num_rows: int
    num_steps: int
    seed: int


TEACHER: Final = Recipe("teacher", "correct", num_layers=3, num_rows=48_000, num_steps=4_000, seed=1)
STUDENT: Final = Recipe("student", "scrambled", num_layers=2, num_rows=32_000, num_steps=2_000, seed=2)


def new_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Return a randomly initialised Qwen3 model, seeded by the recipe."""
    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def pretrain(model: Qwen3ForCausalLM, rows: list[Row], recipe: Recipe) -> float:
    """Train `model` in place for `recipe.num_steps` steps and return the last steps' mean loss in nats a token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, recipe.num_steps))
    batches = _endless_batches(rows, random.Random(recipe.seed))
    model.train()
    recent: list[float] = []
    for step in range(1, recipe.num_steps + 1):
        loss = _loss(model, next(batches))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        recent = [*recent[-99:], loss.item()]
        if step % 100 == 0:
            logger.info("%s: step %d of %d, loss %.4f", recipe.name, step, recipe.num_steps, sum(recent) / 100)
    model.eval()
    return sum(recent) / len(recent)


def _rate(step: int, num_steps: int) -> float:
    if step < _WARMUP_STEPS:
        return (step + 1) / _WARMUP_STEPS
    return 0.5 * (1 + math.cos(math.pi * step / num_steps))


def _endless_batches(rows: list[Row], rng: random.Random) -> Iterator[list[Row]]:
    """Yield batches of rows of similar length, so that little is spent on padding."""
    while True:
        order = rng.sample(rows, len(rows))
        bucket_size = BATCH_SIZE * _BATCHES_PER_BUCKET
        for first in range(0, len(order), bucket_size):
            bucket = sorted(order[first : first + bucket_size], key=lambda row: len(row.ids))
            batches = [bucket[i : i + BATCH_SIZE] for i in range(0, len(bucket), BATCH_SIZE)]
            yield from rng.sample(batches, len(batches))


def _loss(model: Qwen3ForCausalLM, batch: list[Row]) -> torch.Tensor:
    """Return the mean cross-entropy over the trained tokens; the head runs only where it is needed."""
    ids_BT = pad_sequence([torch.tensor(row.ids) for row in batch], True, model.config.pad_token_id)
    mask_BT = pad_sequence([torch.tensor(row.loss_mask).bool() for row in batch], True)
    # Padding is on the right and attention causal, so no real token sees a padded one and no mask is needed.
    hidden_BTH = model.model(input_ids=ids_BT[:, :-1], use_cache=False).last_hidden_state
    trained = mask_BT[:, 1:]
    logits_NV = model.lm_head(hidden_BTH[trained])
    return cross_entropy(logits_NV, ids_BT[:, 1:][trained])
