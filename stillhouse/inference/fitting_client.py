"""`FittingClient`: schemas are sent as they are until the endpoint refuses them, then in a form that it takes."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final, NamedTuple

from stillhouse.config import ModelRole
from stillhouse.inference.completion import ChatClient, Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.sampling import Sampling
from stillhouse.inference.schema_forms import CLOSED, OPEN, Misfit, SchemaForm, known_form
from stillhouse.types import Message, ToolSchema

_LOG = logging.getLogger(__name__)
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


class _Forms(NamedTuple):
    answer: SchemaForm | None
    tools: SchemaForm | None = None
    """None sends them as they are."""
    sends_answer: bool = True

    def of(self, tools: Sequence[ToolSchema], sampling: Sampling) -> tuple[Sequence[ToolSchema], Sampling]:
        """Return what is sent; raise Misfit where a schema has no such form."""
        if (schema := sampling.response_schema) is not None and self.answer is not None:
            sampling = replace(sampling, response_schema=self.answer.of(schema) if self.sends_answer else None)
        return tools if self.tools is None else self.tools.of_tools(tools), sampling

    def after(self, refusal: str, *, is_about_tools: bool, is_judge: bool) -> "_Forms | None":
        """Return what to send after a refusal; None where nothing is left."""
        if is_about_tools:
            return None if self.tools else self._replace(tools=OPEN)
        is_too_much = "Unknown name" in refusal or (
            "additionalProperties" in refusal and not re.search("required|false", refusal)
        )
        wanted = OPEN if is_too_much else CLOSED
        if self.answer not in (CLOSED, OPEN) or (self.answer, wanted) == (CLOSED, OPEN):
            return self._replace(answer=wanted)
        return self._replace(sends_answer=False) if is_judge and self.sends_answer else None


class FittingClient:
    """A `ChatClient` that asks through another one, with the schemas of answers and tools as the endpoint takes them.

    A refusal that is about a schema is answered with the same request in another form. What it taught holds for all
    clients of that model in this process. The judge's schema, which its prompt repeats, is at last left out.
    """

    _learnt: ClassVar[dict[tuple[str, str, ModelRole], _Forms]] = {}

    def __init__(self, client: ChatClient, endpoint: Endpoint) -> None:
        self._client = client
        self._key = (endpoint.base_url, endpoint.model, endpoint.role)

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling
    ) -> Completion:
        while True:
            forms = self._forms
            try:
                sent = forms.of(tools, sampling)
            except Misfit:
                # To be refused in the seller's own words.
                sent = tools, sampling
            try:
                return await self._client.complete(messages, *sent)
            except RequestFailed as failed:
                if not (tools or sampling.response_schema) or not _is_about_schemas(failed.failure):
                    raise
                # Another request may have taught it meanwhile.
                if self._forms == forms:
                    self._learn(forms, failed.failure, tools, sampling)

    async def aclose(self) -> None:
        await self._client.aclose()

    @property
    def _forms(self) -> _Forms:
        return self._learnt.get(self._key) or _Forms(known_form(self._key[0]))

    def _learn(self, forms: _Forms, failure: Failure, tools: Sequence[ToolSchema], sampling: Sampling) -> None:
        """Change what is sent, or raise the failure with what to do where nothing is left."""
        url, _, role = self._key
        is_about_tools = bool(tools) and (not sampling.response_schema or bool(_ABOUT_TOOLS.search(failure.message)))
        learnt = forms.after(failure.message, is_about_tools=is_about_tools, is_judge=role is ModelRole.JUDGE)
        misfit = ""
        try:
            if learnt is not None:
                learnt.of(tools, sampling)
        except Misfit as error:
            learnt, misfit = None, f" ({error})"
        if learnt is None:
            remedy = (_NO_FORM_OF_TOOLS if is_about_tools else _NO_FORM).format(misfit)
            raise RequestFailed(replace(failure, message=f"{failure.message.rstrip('.')}. {remedy}"))
        self._learnt[self._key] = learnt
        what = "parameters of tools are" if is_about_tools else "the schema of answers is"
        how = "sent in another form" if learnt.sends_answer else "left out, since the prompt says the same"
        _LOG.warning("%s: %s now %s, and what comes is checked here in full: %s", url, what, how, failure.message)


def _is_about_schemas(failure: Failure) -> bool:
    is_refused = failure.kind is FailureKind.PERMANENT or failure.status == 500
    return is_refused and not failure.context_overflow and _ABOUT_SCHEMAS.search(failure.message) is not None
