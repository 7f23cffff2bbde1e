"""The held-out split: decided by each prompt's content, so that it is stable when prompts are added or reordered."""

from collections.abc import Iterable

from stillhouse.store.fingerprint import unit_interval
from stillhouse.types import Prompt


def split_prompts(prompts: Iterable[Prompt], fraction: float, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """`(train, held_out)`, each in the order given; `fraction` of all prompts is held out in expectation."""
    train: list[Prompt] = []
    held_out: list[Prompt] = []
    for prompt in prompts:
        (held_out if unit_interval(seed, prompt.id) < fraction else train).append(prompt)
    return train, held_out
