"""Base of all config sections, and field types that several share."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from stillhouse.config.secrets import SECRET_ERROR

_SPELLINGS: Final = {
    **{word: word.upper() for word in ("api", "ema", "gpu", "kl", "mcp", "nll", "ppo", "sft", "uri", "url")},
    **{"gpus": "GPUs", "hf": "Hugging Face", "lora": "LoRA", "mlflow": "MLflow"},
    **{"s": "(s)", "tflops": "TFLOPS", "usd": "USD"},
}
"""Spelling of words of field names in a form; `timeout_s` is a time in seconds."""


def _as_form(schema: dict[str, Any], section: type["Section"]) -> None:
    """Add titles, and positions: `form_first`, then the others in the order of the source, marked as `more`.

    Prefect's form has no groups, and sorts by name where there are no positions.
    """
    fields = schema.get("properties", {})
    order = [*section.form_first, *(name for name in fields if name not in section.form_first)]
    for name, field in fields.items():
        field["position"] = order.index(name)
        field["title"] = field_title(name)
        if section.form_first and name not in section.form_first:
            field["more"] = True
        _without_tabs(field)


def _without_tabs(field: dict[str, Any]) -> None:
    """Replace `value or null, by default null` by what Prefect's form shows as one field and not as tabs.

    Prefect's server takes null for every field that has no default. `nullable` tells the docs.
    """
    alternatives = field.get("anyOf", [])
    if field.get("default", ...) is None and len(alternatives) == 2 and alternatives[1] == {"type": "null"}:
        del field["anyOf"], field["default"]
        field |= {**alternatives[0], "nullable": True}
        if "enum" in field:
            field["enum"] = [*field["enum"], None]


def field_title(name: str) -> str:
    """Return the title of a field in a form: `max_kl_coef` becomes `Max KL coef`."""
    title = " ".join(_SPELLINGS.get(word, word) for word in name.split("_"))
    return title[:1].upper() + title[1:]


class Section(BaseModel):
    """Base of all sections. The docstring under a field is its description, in errors, forms and docs alike."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra=_as_form,
        validate_default=True,
        allow_inf_nan=False,
        # Tracebacks end up on Prefect's pages, and a wrong value may be a key.
        hide_input_in_errors=True,
    )

    form_first: ClassVar[tuple[str, ...]] = ()
    """Fields that most people set, which come first in Prefect's form; without any, all are equal there."""

    def identity(self, exclude: Collection[str] = ()) -> dict[str, Any]:
        """Return what cache keys are made of: the dump as `key_fields` has it, without the fields of `exclude`."""
        return {name: value for name, value in self.key_fields(_fields(self)).items() if name not in exclude}

    def key_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return those of the dumped `fields` that change a result, flat where a stage leaves out some by name."""
        return fields


def identity_of(model: BaseModel) -> dict[str, Any]:
    """Return the dump of a model in which each section has its identity."""
    return model.identity() if isinstance(model, Section) else _fields(model)


def _fields(model: BaseModel) -> dict[str, Any]:
    dump = model.model_dump(mode="json")
    return {name: _identity(getattr(model, name), dumped) for name, dumped in dump.items()}


def _identity(value: Any, dumped: Any) -> Any:
    if isinstance(value, BaseModel):
        return identity_of(value)
    return list(map(_identity, value, dumped)) if isinstance(value, tuple) else dumped


def later_field(default: Any, **constraints: Any) -> Any:
    """Return a field that no dump holds at its default, so that configs without it keep their cache keys.

    For every field added to a section that enters a key.
    """
    return Field(default=default, exclude_if=lambda value: value == default, **constraints)


def _is_address(value: str) -> str:
    if urlsplit(value).scheme not in ("http", "https"):
        raise PydanticCustomError(
            # An `@` may stand behind a password.
            SECRET_ERROR if "@" in value else "address",
            "expected an address that begins with http:// or https://; variables are not filled in",
        )
    return value


Address = Annotated[str, AfterValidator(_is_address)]
"""Address of a server."""


def _are_addresses(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < max(1, len(values)):
        raise ValueError("expected at least one address, and each of them once")
    return tuple(map(_is_address, values))


Addresses = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    AfterValidator(_are_addresses),
]
"""Addresses of servers of one kind; a single one may be written without a list."""


def _variables(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in values.items():
        if not name.isidentifier():
            raise ValueError(f"{name!r}: expected the name of a variable of the template, such as enable_thinking")
        if name in _RENDERERS_OWN or name.endswith("_token"):
            raise ValueError(f"{name!r}: is given by whoever renders the template. Leave it out")
        if str(value) in ("true", "false"):
            raise ValueError(f"{name!r} = {value!r}: is a text, which a template takes for true. Leave out the quotes")
    return values


_RENDERERS_OWN: Final = ("messages", "tools", "documents", "add_generation_prompt")
ChatTemplateKwargs = Annotated[
    Mapping[str, bool | int | Annotated[float, Field(allow_inf_nan=False)] | str],
    AfterValidator(_variables),
    # Prefect's form has no field for a value of several types.
    WithJsonSchema({"type": "object"}),
]
"""Values for variables of a chat template, such as `{"enable_thinking": False}`."""
