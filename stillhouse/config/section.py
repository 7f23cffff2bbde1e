"""What every config section is: frozen, closed to unknown keys, and readable as a form."""

from typing import Any

from pydantic import BaseModel, ConfigDict


def _number_fields(schema: dict[str, Any]) -> None:
    """Keeps a form in the order written here: Prefect's form sorts fields by name unless each has a position."""
    for position, field in enumerate(schema.get("properties", {}).values()):
        field["position"] = position


class Section(BaseModel):
    """Base of all sections. The docstring under a field is its description, in errors, forms and docs alike."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra=_number_fields,
        validate_default=True,
        # A traceback ends on a page of Prefect, and what is wrong in a config may be a key.
        hide_input_in_errors=True,
    )
