from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

from stillhouse.config.expected import expected


class Section(BaseModel):
    key: int


def refuse(value: int) -> int:
    raise ValueError("Odd numbers go with `odd: true`")


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Annotated[float, Field(gt=0.5)], 0, "expected more than 0.5"),
        (Annotated[int, Field(ge=2)], 1, "expected at least 2"),
        (Annotated[int, Field(lt=2)], 2, "expected less than 2"),
        (Annotated[int, Field(le=2)], 3, "expected at most 2"),
        (Annotated[float, Field(allow_inf_nan=False)], float("nan"), "expected a finite number"),
        (int, "many", "expected a whole number"),
        (int, None, "expected a whole number"),
        (int, 1.5, "expected a whole number"),
        (float, "many", "expected a number"),
        (bool, "maybe", "expected true or false"),
        (str, [], "expected text"),
        (str, None, "expected text"),
        (str, 5, "expected text, in quotes"),
        (str, False, "expected text, in quotes"),
        (str, date(2026, 1, 1), "expected text, in quotes"),
        (Annotated[str, Field(min_length=2)], "a", "expected text of at least 2 characters"),
        (Annotated[str, Field(pattern="^a")], "b", "expected text that matches ^a"),
        (Literal["a", "b"], "c", "expected 'a' or 'b'"),
        (tuple[int, ...], 5, "expected a list"),
        (Annotated[list[int], Field(min_length=1)], [], "expected 1 or more items"),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "expected at most 1 items"),
        (dict[str, int], 5, "expected a mapping"),
        (Section, 5, "expected a mapping"),
        (Section, None, "expected a mapping; leave an empty section out"),
        (Section, {}, "missing; it has no default"),
        (Annotated[int, AfterValidator(refuse)], 1, "odd numbers go with `odd: true`"),
    ],
)
def test_what_was_expected_is_said_without_pydantics_words(kind: Any, value: object, message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(kind).validate_python(value)
    (problem,) = raised.value.errors()
    assert expected(problem) == message
