"""The prompts of a training: which of them are left out, and which a batch takes."""

import logging
from collections.abc import Mapping, Sequence
from operator import itemgetter

from stillhouse.config import OnPolicyConfig
from stillhouse.config.mixture import prompts_by_source
from stillhouse.errors import ConfigError, InputError
from stillhouse.prompts.parse import PROMPT_SOURCE
from stillhouse.training.loop.row_order import distinct_rows
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.types import Prompt, PromptMetadata

logger = logging.getLogger(__name__)

Metadata = Mapping[str, PromptMetadata]


def of_mixture(prompts: Sequence[Prompt], metadata: Metadata, config: OnPolicyConfig) -> list[Prompt]:
    """Return the prompts that batches are drawn from.

    Raises:
        ConfigError: a batch takes more of them than there are.
    """
    parts = _parts(prompts, metadata, config)
    if shortage := _shortage(parts):
        setting, num_prompts = shortage
        raise ConfigError(f"{setting}: expected at most the number of training prompts, {num_prompts}")
    drawn = {prompt.id for _, part in parts.values() for prompt in part}
    return [prompt for prompt in prompts if prompt.id in drawn]


def fitting(
    prompts: Sequence[Prompt], metadata: Metadata, sampler: Sampler, config: OnPolicyConfig
) -> Sequence[Prompt]:
    """Return the prompts within `max_prompt_tokens` that leave room for an answer; the others are counted in a warning.

    Raises:
        InputError: a batch takes more of them than are left.
    """
    sizes = {prompt.id: len(ids) for prompt, ids in zip(prompts, sampler.prompt_ids(prompts), strict=True)}
    no_room = (
        f"leave no room for an answer in {sampler.max_context} tokens, the shortest context of student, sampler and "
        "teachers less what hints and templates of their own add"
    )
    remedy = "shorten prompts or hints, or take models or servers of a longer context"
    limits = [(sampler.max_context - 1, no_room, remedy)]
    if config.max_prompt_tokens is not None:
        too_long = f"have more than on_policy.max_prompt_tokens = {config.max_prompt_tokens} tokens"
        limits.insert(0, (config.max_prompt_tokens, too_long, "raise it, or shorten prompts"))
    for limit, problem, remedy in limits:
        kept = [prompt for prompt in prompts if sizes[prompt.id] <= limit]
        if len(kept) == len(prompts):
            continue
        size, longest = max((sizes[prompt.id], prompt.id) for prompt in prompts)
        seen = f"{len(prompts) - len(kept)} of {len(prompts)} prompts {problem}: prompt {longest} has {size}"
        if shortage := _shortage(_parts(kept, metadata, config)):
            raise InputError(f"{seen}. Expected {shortage[0]} of them or more without these: {remedy}")
        logger.warning("%s. They are left out", seen)
        prompts = kept
    return prompts


def prompts_of_batch(prompts: Sequence[Prompt], metadata: Metadata, config: OnPolicyConfig, index: int) -> list[Prompt]:
    """Return the distinct prompts of batch `index`: a function of these arguments, so that a restart draws the same."""
    drawn: list[tuple[float, Prompt]] = []
    for count, part in _parts(prompts, metadata, config).values():
        rows = distinct_rows(index, count, len(part), config.trainer.seed)
        drawn += [((place + 0.5) / count, part[row]) for place, row in enumerate(rows)]
    # Evenly mixed, so that each substep has its share of each source.
    return [prompt for _, prompt in sorted(drawn, key=itemgetter(0))]


def _parts(
    prompts: Sequence[Prompt], metadata: Metadata, config: OnPolicyConfig
) -> dict[str, tuple[int, Sequence[Prompt]]]:
    """Return, for each setting that draws prompts, how many of which prompts it takes for a batch."""
    if not config.mixture:
        return {"on_policy.prompts_per_step": (config.prompts_per_step, prompts)}
    by_source: dict[object, list[Prompt]] = {}
    for prompt in prompts:
        entry = metadata.get(prompt.id)
        by_source.setdefault(entry and entry.metadata.get(PROMPT_SOURCE), []).append(prompt)
    return {
        f"on_policy.mixture, prompts of {source!r} in a batch": (count, by_source.get(source, []))
        for source, count in prompts_by_source(config.mixture, config.prompts_per_step).items()
    }


def _shortage(parts: Mapping[str, tuple[int, Sequence[Prompt]]]) -> tuple[str, int] | None:
    """Return a setting that takes more prompts than there are, and how many there are; None without one."""
    short = ((f"{setting} = {count}", len(part)) for setting, (count, part) in parts.items() if len(part) < count)
    return next(short, None)
