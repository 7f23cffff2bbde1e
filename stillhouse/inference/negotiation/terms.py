"""`Terms`: how requests to one endpoint's model are written, as refusals of what was `Asked` taught."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, cast

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.sampling import Sampling
from stillhouse.inference.schema_forms import CLOSED, OPEN, SchemaForm
from stillhouse.types import JsonObject, Message, ToolSchema

FormName = Literal["closed", "open"]
_FORMS: Final = {"closed": CLOSED, "open": OPEN}


@dataclass(frozen=True, slots=True)
class Terms:
    """Plain values, as they are kept in a file."""

    answer: FormName | None = None
    """Form of answers' schemas; None sends them in the provider's, or as they are, as with `tools`."""
    tools: FormName | None = None
    sends_answer: bool = True
    """False leaves a judge's schema out, which its prompt repeats."""
    refused_keys: list[str] = field(default_factory=list)
    """Keys of assistants' messages."""
    system: str = "system"
    """Role of instructions; `user` puts them before the first message of the user."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Parameters, with the names that they are sent under."""
    replaced: JsonObject = field(default_factory=dict)
    """Parameters, with the values that are sent instead; None leaves them out. Names are dotted within objects."""

    def fitted(
        self, tools: Sequence[ToolSchema], sampling: Sampling, known: SchemaForm | None
    ) -> tuple[Sequence[ToolSchema], Sampling]:
        """Return tools and sampling with schemas in forms that are taken, answers' in the `known` one where no other is
        learnt; raise Misfit where one has none.
        """
        form = known if self.answer is None else _FORMS[self.answer]
        if (schema := sampling.response_schema) is not None and not self.sends_answer:
            sampling = replace(sampling, response_schema=None)
        elif schema is not None and form is not None:
            sampling = replace(sampling, response_schema=form.of(schema))
        return tools if self.tools is None else _FORMS[self.tools].of_tools(tools), sampling

    def addressed(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages with instructions in the role that is taken."""
        if self.system == "system" or not messages or messages[0]["role"] != "system":
            return messages
        first, *rest = messages
        if self.system == "user" and rest and rest[0]["role"] == "user":
            said, asked = first.get("content"), rest[0].get("content")
            both: Any = f"{said}\n\n{asked}"
            if not (isinstance(said, str) and isinstance(asked, str)):
                both = [*_parts(said), *_parts(asked)]
            return [cast(Message, {**rest[0], "content": both}), *rest[1:]]
        return [cast(Message, {**first, "role": self.system}), *rest]

    def apply(self, body: JsonObject, own: Set[str]) -> JsonObject:
        """Change parameters of a request in place; return those that are not sent as asked, with what is sent instead.

        `own` are names of the user's own keys, which stay.
        """
        changed: JsonObject = {}
        for name, value in self.replaced.items():
            if (place := place_of(body, name)) is not None and name.partition(".")[0] not in own:
                holder, key = place
                changed[name] = holder[key] = value
                if value is None:
                    del holder[key]
        for name, other in self.renamed.items():
            if name in body and name not in own:
                body[other] = body.pop(name)
        return changed


class Asked(NamedTuple):
    """A request that was refused: what was wanted, and the body that was sent."""

    endpoint: Endpoint
    tools: Sequence[ToolSchema]
    sampling: Sampling
    body: JsonObject


def place_of(body: JsonObject, name: str) -> tuple[JsonObject, str] | None:
    """Return the object of a request in which a dotted name stands, and its key there; None if it is not there."""
    *path, key = name.split(".")
    for part in path:
        body = body.get(part, {})
        if not isinstance(body, dict):
            return None
    return (body, key) if key in body else None


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
