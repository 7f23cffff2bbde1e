"""The sampler alone, against `model.generate` of transformers and against what memory bandwidth allows.

256 prompts of 128 tokens, 512 sampled tokens each, at temperature 1, from the 0.6B shape in bfloat16. `generate` runs
with its growing cache and, compiled by itself, with a static one.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import build, shape_of
from benchmarks.gpu.plan import Row
from benchmarks.gpu.timing import median_seconds
from benchmarks.on_policy.floor import Machine, sampling_seconds
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator

_FIRST_ID: Final = 10
"""Ids below it may end a completion."""


def measure(row: Row, bench: Bench) -> None:
    """Samples by one side."""
    shape = shape_of("0.6B", bench)
    num_prompts, prompt_tokens, new_tokens = (4, 8, 6) if bench.tiny else (256, 128, 512)
    model: Any = build(shape, bench, parameters="frozen").causal_lm
    ids = np.random.default_rng(0).integers(_FIRST_ID, shape.vocabulary, (num_prompts, prompt_tokens)).tolist()
    static = row.options["side"] == "generate, static cache"
    sample = (
        _ours(model, ids, new_tokens) if row.options["side"] == "ours" else _generate(model, ids, new_tokens, static)
    )
    seconds = median_seconds(sample, bench, num_rounds=1 if bench.tiny else 2)
    machine = Machine.measured("bfloat16", bench.device)
    bench.record(
        {
            "sampled_tokens_per_s": num_prompts * new_tokens / seconds,
            "seconds": seconds,
            "floor_s": sampling_seconds(shape, [(prompt_tokens, new_tokens)] * num_prompts, machine),
        }
    )


def _ours(model: Any, prompts: list[list[int]], new_tokens: int) -> Callable[[], object]:
    requests = [GenerationRequest(prompt, new_tokens, seed=seed) for seed, prompt in enumerate(prompts)]

    def sample() -> None:
        # A new one each time, as for each on-policy batch.
        generator = Generator(model, max_batch=len(prompts))
        generator.run(requests)
        generator.close()

    return sample


def _generate(model: Any, prompts: list[list[int]], new_tokens: int, static: bool) -> Callable[[], object]:
    inputs = torch.tensor(prompts, device=model.device)
    cache = {"cache_implementation": "static"} if static else {}

    def sample() -> None:
        model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=True,
            top_k=0,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            pad_token_id=0,
            **cache,
        )

    return sample
