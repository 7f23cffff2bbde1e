"""Parameters that a refusal names: which are dropped, renamed or replaced, and which setting the others have."""

import re
from dataclasses import replace
from typing import Any, Final

from stillhouse.inference.failures import Failure
from stillhouse.inference.negotiation.message_keys import REFUSING
from stillhouse.inference.negotiation.terms import Asked, Terms, place_of
from stillhouse.inference.refused_setting import setting_named
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


def with_parameter(terms: Terms, failure: Failure, asked: Asked) -> tuple[Terms, str] | None:
    """Return the terms after a refusal that names a parameter, and the change; None where it must not be changed."""
    name = _named(failure, asked.body)
    if name is None or name.partition(".")[0] in asked.sampling.extra_body:
        return None
    if name in _EFFORTS:
        effort = _nearest(_value_of(asked.body, name), failure.message)
        changed = replace(terms, replaced={**terms.replaced, name: effort})
        return None if effort is None else (changed, f"{name} is {effort!r} instead")
    if not REFUSING.search(failure.message):
        return None
    other = _LIMITS.get(name)
    if name == "seed" and "extra" in failure.message.lower():
        other = "random_seed"
    if other is not None:
        # Refused under both names.
        if other in terms.renamed:
            return None
        return replace(terms, renamed={**terms.renamed, name: other}), f"{name} is called {other}"
    if name not in _DROPPED:
        return None
    first = next((first for first, sent in terms.renamed.items() if sent == name), name)
    return replace(terms, replaced={**terms.replaced, first: None}), f"{first} is left to the model"


def with_role(terms: Terms, failure: Failure, asked: Asked) -> tuple[Terms, str] | None:
    """Return the terms after a refusal of the role of instructions, and the change; None if it is about another."""
    roles = {message["role"] for message in asked.body.get("messages", ())}
    if terms.system == "user" or not roles & {"system", "developer"}:
        return None
    if not _ROLE.search(failure.message) or not (REFUSING.search(failure.message) or "should be" in failure.message):
        return None
    # OpenAI words it so; others that take no `system` take no `developer` either.
    is_openai = terms.system == "system" and "does not support 'system'" in failure.message
    role = "developer" if is_openai else "user"
    return replace(terms, system=role), f"instructions have the role {role!r}"


def explained(failure: Failure, asked: Asked) -> Failure:
    """Return a refusal with the setting to change, where it names something that every request holds."""
    setting = _setting(failure, asked) if failure.is_refusal else None
    if setting is None:
        return failure
    return replace(failure, message=f"{failure.message.rstrip('.')}. Change {setting}", is_of_settings=True)


def _setting(failure: Failure, asked: Asked) -> str | None:
    message = failure.message
    is_too_long = _TOO_LONG.search(message) is not None
    name = (_named(failure, asked.body) if is_too_long or REFUSING.search(message) else None) or ""
    first = name.partition(".")[0]
    if first in asked.sampling.extra_body:
        return f"rollouts.extra_body.{name}"
    is_of_all = (
        is_too_long
        or (failure.status in (400, 404) and _OTHER_API.search(message))
        or ("logprob" in message and "logprobs" in asked.body)
        or name in _EFFORTS
        or first in ("tools", "tool_choice")
    )
    return setting_named(message, asked.endpoint.role) if is_of_all else None


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
