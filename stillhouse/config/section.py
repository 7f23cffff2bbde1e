"""Base of all config sections, and a field type that several share."""

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_SPELLINGS: Final = {
    **{word: word.upper() for word in ("api", "cispo", "ema", "gpu", "kl", "mcp", "nll", "ppo", "sft", "uri", "url")},
    **{"cpus": "CPUs", "gib": "GiB", "gpus": "GPUs", "hf": "Hugging Face", "lora": "LoRA", "mlflow": "MLflow"},
    **{"neftune": "NEFTune", "s": "(s)", "tflops": "TFLOPS", "usd": "USD"},
}
"""Words of field names that a form spells in their own way; `timeout_s` is a time in seconds."""


def _as_form(schema: dict[str, Any]) -> None:
    """Titles for people, and the order written here: Prefect's form sorts fields by name unless each has a position."""
    for position, (name, field) in enumerate(schema.get("properties", {}).items()):
        field["position"] = position
        field["title"] = field_title(name)


def field_title(name: str) -> str:
    """How a form calls a field: `max_kl_coef` is `Max KL coef`."""
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
        # A traceback ends on a page of Prefect, and what is wrong in a config may be a key.
        hide_input_in_errors=True,
    )


def _that_is_free(alias: str) -> str:
    if re.fullmatch(r"latest|v\d+", alias, re.IGNORECASE):
        raise ValueError("reserved by MLflow; expected another, such as `candidate` or `champion`")
    return alias


Alias = Annotated[str, Field(pattern=r"^[\w-]+$"), AfterValidator(_that_is_free)]
"""Letters, digits, `_` and `-`, and not what MLflow itself points to versions with."""
