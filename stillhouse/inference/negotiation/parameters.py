"""Parameters that a refusal names: which are dropped, renamed or replaced, and what to do about the others."""

import re
from collections.abc import Set
from dataclasses import replace
from typing import Any, Final

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind
from stillhouse.inference.negotiation.message_keys import REFUSING
from stillhouse.inference.negotiation.terms import Terms, place_of
from stillhouse.inference.sampling import Sampling
from stillhouse.types import JsonObject

_DROPPED: Final = frozenset(
    {"temperature", "top_p", "seed", "random_seed", "presence_penalty", "frequency_penalty", "parallel_tool_calls"}
    | {"user", "store", "usage", "return_token_ids", "return_tokens_as_token_ids", "raw_logprobs"}
    | {"prompt_cache_key", "prompt_cache_options", "safety_identifier"}
)
_LIMITS: Final = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_EFFORTS: Final = frozenset({"reasoning_effort", "reasoning.effort", "output_config.effort"})
_LADDER: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_VALUES: Final = re.compile(r"values are:?(.*)", re.IGNORECASE | re.DOTALL)
_QUOTED: Final = re.compile(r"[`'\"]([\w.]+)[`'\"\\]")
_SUPPLIED: Final = re.compile(r"arguments? supplied: ([\w, ]+)")
_ROLE: Final = re.compile(
    r"\b(system|developer)\W+(role|instruction|message|prompt)|does not support '(system|developer)'"
    r"|role\W+(system|developer)\b|input should be 'user' or 'assistant'",
    re.IGNORECASE,
)
_TOO_LONG: Final = re.compile(
    r"max_(completion_|output_)?tokens\W.*(too large|at most|maximum allowed|less than or equal)", re.DOTALL
)
_OTHER_API: Final = re.compile(r"v1/(responses|completions)\b")


def with_parameter(terms: Terms, failure: Failure, body: JsonObject, own: Set[str]) -> Terms | None:
    """Return the terms after a refusal that names a parameter of `body`; None where it must not be changed.

    `own` are names of the user's own keys.
    """
    name = _named(failure, body)
    if name is None or name.partition(".")[0] in own:
        return None
    if name in _EFFORTS:
        effort = _nearest(_value_of(body, name), failure.message)
        return None if effort is None else replace(terms, replaced={**terms.replaced, name: effort})
    if not REFUSING.search(failure.message):
        return None
    if (other := _LIMITS.get(name)) is not None:
        # Refused under both names.
        return None if other in terms.renamed else replace(terms, renamed={**terms.renamed, name: other})
    if name == "seed" and "extra" in failure.message.lower():
        return replace(terms, renamed={**terms.renamed, name: "random_seed"})
    if name not in _DROPPED:
        return None
    asked = next((first for first, sent in terms.renamed.items() if sent == name), name)
    return replace(terms, replaced={**terms.replaced, asked: None})


def with_role(terms: Terms, failure: Failure, body: JsonObject) -> Terms | None:
    """Return the terms after a refusal of the role of instructions; None if it is about something else."""
    roles = {message["role"] for message in body.get("messages", ())}
    if terms.system == "user" or not roles & {"system", "developer"}:
        return None
    if not _ROLE.search(failure.message) or not (REFUSING.search(failure.message) or "should be" in failure.message):
        return None
    # OpenAI words it so; others that take no `system` take no `developer` either.
    is_openai = terms.system == "system" and "does not support 'system'" in failure.message
    return replace(terms, system="developer" if is_openai else "user")


def explained(failure: Failure, body: JsonObject, sampling: Sampling, endpoint: Endpoint) -> Failure:
    """Return a refusal with the setting to change, where it names something that every request holds."""
    is_refused = failure.kind is FailureKind.PERMANENT and not failure.context_overflow
    remedy = _remedy(failure, body, sampling, endpoint) if is_refused else None
    if remedy is None:
        return failure
    return replace(failure, message=f"{failure.message.rstrip('.')}. {remedy}", is_of_settings=True)


def _remedy(failure: Failure, body: JsonObject, sampling: Sampling, endpoint: Endpoint) -> str | None:
    section, model = endpoint.role.section, endpoint.model
    if (other := _OTHER_API.search(failure.message)) is not None and failure.status in (400, 404):
        if other[1] == "completions" and "/responses" not in failure.message:
            return f"{model} is no chat model: name another in {section}.model"
        less = ", or rollouts.reasoning_effort: none" if "reasoning_effort" in failure.message else ""
        return f"Set {section}.api: responses{less}"
    if _TOO_LONG.search(failure.message) and not sampling.extra_body.keys() & _LIMITS.keys():
        return f"{model} does not write {sampling.max_tokens} tokens at once: lower max_tokens"
    top_k = sampling.record_top_k
    if "logprob" in failure.message and "logprobs" in body:
        if top_k is None:
            return f"{model} gives no log-probabilities: leave out rollouts.record_tokens"
        return (
            f"The endpoint refuses rollouts.record_top_k {top_k}: lower it (OpenAI gives 20, vLLM what its "
            "--max-logprobs says), or leave it out where a model gives none, as those that reason at OpenAI"
        )
    name = _named(failure, body) if REFUSING.search(failure.message) else None
    if name is None:
        return None
    first = name.partition(".")[0]
    if first in sampling.extra_body:
        return f"{model} does not take rollouts.extra_body.{name}: leave it out"
    if name in _EFFORTS:
        return f"{model} does not take rollouts.reasoning_effort {sampling.reasoning_effort}: leave it out or change it"
    if first in ("tools", "tool_choice"):
        return f"{model} takes no tools here: offer none (`tools`), or name a model that calls them in {section}.model"
    return None


def _named(failure: Failure, body: JsonObject) -> str | None:
    """Return the parameter of a request that a refusal names, by its field or else in its words."""
    text = failure.message
    # Anthropic takes one of two.
    if "cannot both" in text and "top_p" in text and {"temperature", "top_p"} <= body.keys():
        return "top_p"
    supplied = _SUPPLIED.search(text)
    words = [*_QUOTED.findall(text), *(supplied[1].split(", ") if supplied is not None else ())]
    # Other bare words are English as well.
    words += [word for word in re.findall(r"[\w.]+", text) if "_" in word or word in ("temperature", "seed")]
    found = (name for name in (failure.parameter, *words) if name and place_of(body, name) is not None)
    return next(found, None) or next((name for name in _EFFORTS if _value_of(body, name) in words), None)


def _value_of(body: JsonObject, name: str) -> Any:
    place = place_of(body, name)
    return None if place is None else place[0][place[1]]


def _nearest(asked: Any, message: str) -> str | None:
    """Return the effort nearest to the one asked for among those that a refusal lists, more rather than less."""
    told = _VALUES.search(message)
    words: list[Any] = re.findall(r"\w+", told[1]) if told is not None else []
    known = [_LADDER.index(word) for word in words if word in _LADDER and word != asked]
    if not known or asked not in _LADDER:
        return None
    place = _LADDER.index(asked)
    return _LADDER[min(known, key=lambda one: (abs(one - place), -one))]
