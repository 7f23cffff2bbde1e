"""The form of a judgement, and how judgements are sampled."""

from collections.abc import Sequence
from typing import Final

from stillhouse.config import Criterion, JudgeConfig, RolloutsConfig
from stillhouse.errors import ConfigError
from stillhouse.types import JsonObject

EXPLANATION: Final = "explanation"
VERDICT: Final = "verdict"
RIGHT: Final = "right"
WRONG: Final = "wrong"
CANNOT_TELL: Final = "cannot_tell"

_CORRECTIONS: Final = 2


def judgement_schema(rubric: Sequence[Criterion], *, verdict: bool) -> JsonObject:
    """The JSON schema of one judgement, strict in OpenAI's sense: every key required and no other allowed.

    The explanation comes first, so that grades follow from it and not it from them.

    Args:
        rubric: each criterion is a key with a whole number from 0 to its best.
        verdict: whether the judge is to say if the answer is right.

    Raises:
        ConfigError: two keys would have the same name.
    """
    properties: JsonObject = {EXPLANATION: {"type": "string"}}
    for criterion in rubric:
        if criterion.name in properties or criterion.name == VERDICT:
            raise ConfigError(
                f"dataset.judge.rubric: the name {criterion.name!r} is taken; expected names that differ from each "
                f"other and from {EXPLANATION!r} and {VERDICT!r}. Rename the criterion"
            )
        properties[criterion.name] = {"type": "integer", "minimum": 0, "maximum": criterion.best}
    if verdict:
        properties[VERDICT] = {"type": "string", "enum": [RIGHT, WRONG, CANNOT_TELL]}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def judge_rollouts(config: JudgeConfig, *, verdict: bool) -> RolloutsConfig:
    """How judgements of one form are sampled; each correction takes a turn of its own, and a batch has but one.

    Raises:
        ConfigError: see `judgement_schema`.
    """
    max_corrections = 0 if config.model.batch else _CORRECTIONS
    return RolloutsConfig(
        num_samples=config.num_samples,
        temperature=config.temperature,
        max_tokens=config.max_tokens,
        max_turns=1 + max_corrections,
        max_corrections=max_corrections,
        response_schema=judgement_schema(config.rubric, verdict=verdict),
        failure_budget=config.failure_budget,
    )
