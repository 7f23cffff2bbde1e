"""Base of all config sections, and a field type that several share."""

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_SPELLINGS: Final = {
    **{word: word.upper() for word in ("api", "cispo", "ema", "gpu", "kl", "mcp", "nll", "ppo", "sft", "uri", "url")},
    **{"gpus": "GPUs", "hf": "Hugging Face", "lora": "LoRA", "mlflow": "MLflow"},
    **{"neftune": "NEFTune", "s": "(s)", "tflops": "TFLOPS", "usd": "USD"},
}
"""Spelling of words of field names in a form; `timeout_s` is a time in seconds."""


def _as_form(schema: dict[str, Any]) -> None:
    """Adds titles, and positions that keep the order of the source: Prefect's form sorts by name otherwise."""
    for position, (name, field) in enumerate(schema.get("properties", {}).items()):
        field["position"] = position
        field["title"] = field_title(name)


def field_title(name: str) -> str:
    """Title of a field in a form: `max_kl_coef` becomes `Max KL coef`."""
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
        # Tracebacks end up on Prefect's pages, and a wrong value may be a key.
        hide_input_in_errors=True,
    )


def later_field(default: Any, **constraints: Any) -> Any:
    """A field that no dump holds at its default: configs without it keep their cache keys and continue their trainings.

    For every field added to a section that enters a key.
    """
    return Field(default=default, exclude_if=lambda value: value == default, **constraints)


def _not_reserved(alias: str) -> str:
    if re.fullmatch(r"latest|v\d+", alias, re.IGNORECASE):
        raise ValueError("reserved by MLflow; expected another, such as `candidate` or `champion`")
    return alias


Alias = Annotated[str, Field(pattern=r"^[\w-]+$"), AfterValidator(_not_reserved)]
"""Alias of a version in MLflow's registry: letters, digits, `_` and `-`, without MLflow's reserved names."""
