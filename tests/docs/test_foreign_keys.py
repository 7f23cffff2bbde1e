"""The page of rnow's and ROLL's keys: every key that the code knows and that rnow's own model has."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from stillhouse.interop import convert
from stillhouse.interop.roll_keys import KEYS, SHARED, TEACHER

HOOKS = Path(__file__).resolve().parents[2] / "docs" / "hooks"


@pytest.fixture(scope="module")
def foreign_keys() -> Iterator[Any]:
    """The module that makes the tables."""
    sys.path.insert(0, str(HOOKS))
    import foreign_keys

    yield foreign_keys
    sys.path.remove(str(HOOKS))


def rows_of(table: str) -> list[tuple[str, str, str]]:
    return re.findall(r"^\| `([^`]+)` \| ([^|]+) \| (.*) \|$", table, re.M)


def configs(foreign_keys: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    systems = yaml.safe_load(foreign_keys.CONFIGS.read_text())
    return ((name, body) for name in foreign_keys.SYSTEMS for bodies in systems[name].values() for body in bodies)


def test_every_key_of_the_configs_is_listed_and_says_what_becomes_of_it(foreign_keys: Any) -> None:
    for system, table in foreign_keys.tables().items():
        rows = rows_of(table)
        listed = {key for key, _, _ in rows}
        assert all(here.strip(" ()") for _, _, here in rows)
        bodies = [body for name, body in configs(foreign_keys) if system == f"keys {name}"]
        keys = {key for body in bodies for key in foreign_keys.keys_of(body)}
        assert len(keys) > 35
        assert not {key for key in keys if not any(key == one or key.startswith(f"{one}.") for one in listed)}


def test_every_key_that_the_code_knows_of_roll_is_listed(foreign_keys: Any) -> None:
    listed = {key for key, _, _ in rows_of(foreign_keys.tables()["keys roll"])}
    known = {key for key in (KEYS | SHARED) if not key.startswith(("student_train", "student_infer"))}
    known |= {f"teacher.NAME.{key}" for key in TEACHER}
    assert not {key for key in known if not any(one == key or one.startswith(f"{key}.") for one in listed)}


def test_the_page_says_what_a_conversion_says(foreign_keys: Any, tmp_path: Path) -> None:
    titles = {"Same": "same", "Same by an added key": "same by an added key", "Approximated": "approximated"}
    pages = {name: rows_of(foreign_keys.tables()[f"keys {name}"]) for name in foreign_keys.SYSTEMS}
    for number, (system, body) in enumerate(configs(foreign_keys)):
        source = tmp_path / f"{number}.yaml"
        source.write_text(yaml.safe_dump(body))
        convert(source, tmp_path / f"{number}", f"{system}-config")
        said = {(key, status) for key, status, _ in pages[system]}
        status = ""
        for line in (tmp_path / f"{number}/conversion.md").read_text().splitlines():
            if line.startswith("## "):
                status = titles.get(line[3:], "no counterpart")
            # A key that is mapped and has a reason as well is in two lists there, and in one row of the page.
            elif (match := re.match(r"- `([^`]+)`", line)) and status in ("same by an added key", "approximated"):
                assert (match[1], status) in said


def test_every_key_of_rnow_s_own_model_is_listed(foreign_keys: Any, rnow_models: Any) -> None:
    listed = {key for key, _, _ in rows_of(foreign_keys.tables()["keys rnow"])}

    def fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
        for name, field in model.model_fields.items():
            annotations = [field.annotation, *getattr(field.annotation, "__args__", ())]
            inner = [one for one in annotations if isinstance(one, type) and issubclass(one, BaseModel)]
            if inner:
                yield from fields(inner[0], f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}"

    # Filled in by rnow's server.
    known = {key for key in fields(rnow_models.ProjectConfig) if ".resolved_" not in key}
    assert len(known) > 30
    assert not {key for key in known if not any(key == one or key.startswith(f"{one}.") for one in listed)}
