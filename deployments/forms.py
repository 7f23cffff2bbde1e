"""Folds the forms of deployments.

Prefect's form shows all fields of a config, one below the other. In a folded one each section shows the fields that
teams change. The others lie behind two tabs: `Unchanged` leaves them alone, and `Change` opens them, filled in from
the deployment, as a group of the section that `stillhouse.config.form` knows.
"""

from copy import deepcopy
from typing import Final

from stillhouse.config.form import MORE, unfolded
from stillhouse.config.section import field_title
from stillhouse.types import JsonObject

_UNCHANGED: Final = {"title": "Unchanged", "type": "object"}
"""The tab that is open at first. Prefect's form shows nothing of an object without named fields."""
_HELP: Final = "The values of the deployment. `Unchanged` takes back what is changed here."
_LONGEST: Final = 120
"""Characters of a help text that is always shown, a line; of a longer one its first sentence is."""


def folded(schema: JsonObject, config: JsonObject) -> JsonObject:
    """Return the schema of a flow's form with its sections folded, and filled in from `config` where they open."""
    schema = deepcopy(schema)
    definitions, values = schema["definitions"], unfolded(config)
    sections = definitions["DistillConfig"]["properties"]
    for name, field in sections.items():
        section = definitions[field["$ref"].rpartition("/")[2]]
        more = {key: each for key, each in section["properties"].items() if each.get("more")}
        if more:
            group = f"{name}-{MORE}"
            definitions[group] = section | {"properties": more, "description": _HELP}
            given = {key: value for key, value in values.get(name, {}).items() if key in more}
            title_and_place = {key: field[key] for key in ("title", "position")}
            sections[name] = section | title_and_place | _fields(section["properties"], f"#/definitions/{group}", given)
    return schema


def _fields(fields: JsonObject, group: str, given: JsonObject) -> JsonObject:
    """Return what a folded section has in place of its `fields`."""
    more = sorted((key for key in fields if fields[key].get("more")), key=lambda key: fields[key]["position"])
    fold = {
        "title": field_title(MORE),
        "description": ", ".join(fields[key]["title"] for key in more),
        "position": len(fields),
        "anyOf": [_UNCHANGED, {"$ref": group, "title": "Change", "default": given}],
        # Beside the tabs, for the server, whose errors then name the field.
        "$ref": group,
    }
    first = {key: _short(field) for key, field in fields.items() if key not in more}
    # A config as a file has it is taken as well: the form keeps what matches a pattern, and does not show it.
    hidden = {f"^{key}$": _hidden(f"{group}/properties/{key}", fields[key]) for key in more}
    return {"properties": {**first, MORE: fold}, "patternProperties": hidden}


def _short(field: JsonObject) -> JsonObject:
    text = " ".join(field["description"].split())
    sentence, end, _ = text.partition(". ")
    return {**field, "description": text if len(text) <= _LONGEST else sentence + end.strip()}


def _hidden(place: str, field: JsonObject) -> JsonObject:
    reference = {"$ref": place}
    return {"anyOf": [reference, {"type": "null"}]} if field.get("nullable") else reference
