"""Schemas of answers and tools: sent as they are until the endpoint refuses them, then in a form that it takes."""

import re
from dataclasses import replace
from typing import Final

from stillhouse.config import ModelRole
from stillhouse.inference.failures import Failure, RequestFailed
from stillhouse.inference.negotiation.terms import Asked, FormName, Terms
from stillhouse.inference.providers import provider_of
from stillhouse.inference.schema_forms import CLOSED, Misfit, SchemaForm

_ABOUT_SCHEMAS: Final = re.compile(
    r"schema|response_format|additionalProperties|grammar|structured.?output|function_?declaration|function_parameters",
    re.IGNORECASE,
)
_ABOUT_TOOLS: Final = re.compile(r"\btools?\b|function|input_schema", re.IGNORECASE)
_NO_FORM_OF_TOOLS: Final = "The endpoint takes these parameters of a tool in no form{}: simplify those that it names"
_NO_FORM: Final = (
    "The endpoint takes this schema in no form that means the same{}. Change rollouts.response_schema, or set "
    "rollouts.extra_body: {{response_format: {{type: text}}}} and say in the prompt what is wanted: answers are still "
    "checked and corrected"
)


def with_schemas(terms: Terms, failure: Failure, asked: Asked) -> tuple[Terms, str] | None:
    """Return the terms after a refusal about a schema, and the change; None if it is about something else.

    The judge's schema, which its prompt repeats, is at last left out. Raise RequestFailed where no form is left.
    """
    tools, sampling, message = asked.tools, asked.sampling, failure.message
    is_refused = failure.is_refusal or (failure.status == 500 and not failure.context_overflow)
    if not (tools or sampling.response_schema) or not is_refused or not _ABOUT_SCHEMAS.search(message):
        return None
    is_about_tools = bool(tools) and (not sampling.response_schema or bool(_ABOUT_TOOLS.search(message)))
    known = provider_of(asked.endpoint).answer_form
    if is_about_tools:
        changed = None if terms.tools else replace(terms, tools="open")
    else:
        changed = _answer_after(terms, message, asked.endpoint.role, known)
    misfit = ""
    try:
        if changed is not None:
            changed.fitted(tools, sampling, known)
    except Misfit as error:
        changed, misfit = None, f" ({error})"
    if changed is None:
        remedy = (_NO_FORM_OF_TOOLS if is_about_tools else _NO_FORM).format(misfit)
        raise RequestFailed(replace(failure, message=f"{message.rstrip('.')}. {remedy}"))
    what = "parameters of tools are" if is_about_tools else "the schema of answers is"
    how = "sent in another form" if changed.sends_answer else "left out, since the prompt says the same"
    return changed, f"{what} {how}, and what comes is checked here in full"


def _answer_after(terms: Terms, refusal: str, role: ModelRole, known: SchemaForm | None) -> Terms | None:
    is_too_much = "Unknown name" in refusal or (
        "additionalProperties" in refusal and not re.search("required|false", refusal)
    )
    wanted: FormName = "open" if is_too_much else "closed"
    sent = terms.answer or ("closed" if known == CLOSED else None)
    if sent is None or (sent, wanted) == ("closed", "open"):
        return replace(terms, answer=wanted)
    return replace(terms, sends_answer=False) if role is ModelRole.JUDGE and terms.sends_answer else None
