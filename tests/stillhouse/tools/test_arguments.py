import socket
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from stillhouse.tools import tool
from stillhouse.tools.arguments import ArgumentsRefused, reader_of_schema


class Point(BaseModel):
    x: int
    note: str | None = None


@tool
def take(
    number: int = 0,
    share: float = 0.0,
    flag: bool = False,
    text: str = "",
    names: list[str] | None = None,
    point: Point | None = None,
    points: list[Point] = [],  # noqa: B006
    counts: dict[str, int] = {},  # noqa: B006
    either: int | str = 0,
    choice: Literal["3", "4"] = "3",
) -> None:
    """Takes all there is."""


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        ("number", "3", 3),
        ("number", "3.0", 3),
        ("number", 3.0, 3),
        ("share", "3", 3.0),
        ("share", "1e-3", 0.001),
        ("flag", "true", True),
        ("flag", "False", False),
        ("flag", "yes", True),
        ("flag", 1, True),
        ("text", "3", "3"),
        ("text", "null", "null"),
        ("text", 3, "3"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("names", '["a", "b"]', ["a", "b"]),
        ("names", "null", None),
        ("names", "None", None),
        ("names", [1, "b"], ["1", "b"]),
        ("point", '{"x": "5"}', Point(x=5)),
        ("points", '[{"x": 1}, "{\\"x\\": 2}"]', [Point(x=1), Point(x=2)]),
        ("counts", '{"a": "1"}', {"a": 1}),
        ("either", "3", "3"),
        ("choice", "4", "4"),
        ("choice", 4, "4"),
    ],
)
def test_a_value_is_read_as_what_the_schema_asks_for(name: str, written: Any, read: Any) -> None:
    assert take.read_arguments({name: written})[name] == read


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"number": "3.5"}, "number: "),
        ({"number": "three"}, "number: "),
        ({"flag": "maybe"}, "flag: "),
        ({"names": '["a"'}, "names: "),
        ({"names": '{"a": 1}'}, "names: "),
        ({"numbr": 3}, "numbr: .*number, share"),
        ({"point": {"x": 1, "y": 2}}, r"point\.y: .*x, note"),
        ({"points": [{"x": 1}, {"z": 2}]}, r"points\.1\.z: "),
        ({"choice": "5"}, "choice: "),
    ],
)
def test_what_does_not_fit_is_refused_by_name(written: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentsRefused, match=message):
        take.read_arguments(written)


GIVEN = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 1},
        "on": {"type": ["boolean", "null"]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
        "level": {"enum": [1, 2]},
        "free": {},
    },
    "required": ["count"],
    "$defs": {"tag": {"oneOf": [{"type": "object", "properties": {"id": {"type": "number"}}}, {"type": "null"}]}},
}


def test_a_given_schema_is_read_the_same_way() -> None:
    written = {"count": "2", "on": "true", "tags": '["null", {"id": "1.5"}]', "level": "2", "free": "3", "more": 1}
    assert reader_of_schema(GIVEN)(written) == {
        "arguments": {"count": 2, "on": True, "tags": [None, {"id": 1.5}], "level": 2, "free": "3", "more": 1}
    }


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({}, "'count'"),
        ({"count": 0}, "count: 0 "),
        ({"count": 1, "tags": [{"id": "x"}]}, r"tags\.0"),
    ],
)
def test_a_given_schema_is_kept(written: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentsRefused, match=message):
        reader_of_schema(GIVEN)(written)


def test_a_schema_that_refers_to_itself_can_be_read() -> None:
    tree = {
        "type": "object",
        "properties": {"left": {"$ref": "#"}, "size": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert reader_of_schema(tree)({"left": {"left": '{"size": "3"}'}}) == {"arguments": {"left": {"left": {"size": 3}}}}
    endless = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert reader_of_schema({**endless, "properties": {}})({"b": "1"}) == {"arguments": {"b": "1"}}


@pytest.mark.parametrize("part", [{"$ref": "HOST/schema.json"}, {"pattern": "(?<n>a"}, {"type": "int"}])
def test_a_schema_that_cannot_be_followed_leaves_the_judgement_to_its_owner(part: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        schema = {"properties": {"a": {key: value.replace("HOST", address) for key, value in part.items()}}}
        assert reader_of_schema(schema)({"a": "b"}) == {"arguments": {"a": "b"}}
        with pytest.raises(BlockingIOError):
            server.accept()
