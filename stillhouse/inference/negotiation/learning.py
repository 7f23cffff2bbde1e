"""The one place where a refusal changes what is asked of an endpoint from then on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.negotiation.message_keys import refused_key
from stillhouse.inference.negotiation.parameters import explained, with_parameter, with_role
from stillhouse.inference.negotiation.schemas import is_about_schemas, with_schemas
from stillhouse.inference.negotiation.terms import Terms
from stillhouse.inference.sampling import Sampling
from stillhouse.types import JsonObject, ToolSchema


class Asked(NamedTuple):
    """A request that was refused: what was wanted, and the body that was sent."""

    endpoint: Endpoint
    tools: Sequence[ToolSchema]
    sampling: Sampling
    body: JsonObject


def learnt(terms: Terms, failure: Failure, asked: Asked) -> tuple[Terms, str]:
    """Return the terms after a refusal, and what has changed in words.

    Raise RequestFailed, with what to do, where nothing may be changed or the failure is no refusal of the form.
    """
    if failure.kind is FailureKind.PERMANENT and not failure.context_overflow:
        if (key := refused_key(failure, asked.body.get("messages", []))) is not None:
            changed = replace(terms, refused_keys=[*terms.refused_keys, key])
            return changed, f"messages of the assistant go without the key {key!r}"
        if (changed_role := with_role(terms, failure, asked.body)) is not None:
            return changed_role, f"instructions have the role {changed_role.system!r}"
        if (fitting := with_parameter(terms, failure, asked.body, asked.sampling.extra_body.keys())) is not None:
            return fitting, _difference(terms, fitting)
    if (asked.tools or asked.sampling.response_schema) and is_about_schemas(failure):
        return with_schemas(terms, failure, asked.tools, asked.sampling, asked.endpoint)
    raise RequestFailed(explained(failure, asked.body, asked.sampling, asked.endpoint))


def _difference(before: Terms, after: Terms) -> str:
    for name, value in after.replaced.items():
        if name not in before.replaced or before.replaced[name] != value:
            return f"{name} is left to the model" if value is None else f"{name} is {value!r} instead"
    [(name, other)] = after.renamed.items() - before.renamed.items()
    return f"{name} is called {other}"
