"""`Terms`: how requests to one endpoint's model are written, as its refusals taught."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self, cast

from stillhouse.inference.sampling import Sampling
from stillhouse.inference.schema_forms import SchemaForm
from stillhouse.types import JsonObject, Message, ToolSchema


@dataclass(frozen=True, slots=True)
class Terms:
    answer: SchemaForm | None = None
    """Form of answers' schemas; None sends them as they are, as with `tools`."""
    tools: SchemaForm | None = None
    sends_answer: bool = True
    """False leaves a judge's schema out, which its prompt repeats."""
    refused_keys: frozenset[str] = frozenset()
    """Keys of assistants' messages."""
    system: str = "system"
    """Role of instructions; `user` puts them before the first message of the user."""
    renamed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Parameters, with the names that they are sent under."""
    replaced: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Parameters, with the values that are sent instead; None leaves them out. Names are dotted within objects."""

    def fitted(self, tools: Sequence[ToolSchema], sampling: Sampling) -> tuple[Sequence[ToolSchema], Sampling]:
        """Return tools and sampling with schemas in the forms that are taken; raise Misfit where one has none."""
        if (schema := sampling.response_schema) is not None and self.answer is not None:
            sampling = replace(sampling, response_schema=self.answer.of(schema) if self.sends_answer else None)
        return tools if self.tools is None else self.tools.of_tools(tools), sampling

    def addressed(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages with instructions in the role that is taken."""
        if self.system == "system" or not messages or messages[0]["role"] != "system":
            return messages
        first, *rest = messages
        if self.system != "user":
            return [cast(Message, {**first, "role": self.system}), *rest]
        if not rest or rest[0]["role"] != "user":
            return [{**first, "role": "user"}, *rest]
        said, asked = first.get("content"), rest[0].get("content")
        if isinstance(said, str) and isinstance(asked, str):
            return [{**rest[0], "content": f"{said}\n\n{asked}"}, *rest[1:]]
        return [cast(Message, {**rest[0], "content": [*_parts(said), *_parts(asked)]}), *rest[1:]]

    def apply(self, body: JsonObject, own: Set[str]) -> JsonObject:
        """Change parameters of a request in place; return those that are not sent as asked, with what is sent instead.

        `own` are names of the user's own keys, which stay.
        """
        changed: JsonObject = {}
        for name, value in self.replaced.items():
            if (place := place_of(body, name)) is not None and name.partition(".")[0] not in own:
                holder, key = place
                changed[name] = value
                if value is None:
                    del holder[key]
                else:
                    holder[key] = value
        for name, other in self.renamed.items():
            if name in body and name not in own:
                body[other] = body.pop(name)
        return changed

    def encode(self) -> JsonObject:
        """Return the terms as JSON."""
        forms = {name: form and {"is_closed": form.is_closed, "kept": sorted(form.kept)} for name, form in self._forms}
        return {
            **forms,
            "sends_answer": self.sends_answer,
            "refused_keys": sorted(self.refused_keys),
            "system": self.system,
            "renamed": dict(self.renamed),
            "replaced": dict(self.replaced),
        }

    @classmethod
    def decode(cls, kept: JsonObject) -> Self:
        """Return the terms that `encode` wrote; raise KeyError, TypeError or ValueError if it is something else."""
        answer, tools = (
            form and SchemaForm(form["is_closed"], frozenset(form["kept"])) for form in (kept["answer"], kept["tools"])
        )
        return cls(**{**kept, "answer": answer, "tools": tools, "refused_keys": frozenset(kept["refused_keys"])})

    @property
    def _forms(self) -> tuple[tuple[str, SchemaForm | None], ...]:
        return ("answer", self.answer), ("tools", self.tools)


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
