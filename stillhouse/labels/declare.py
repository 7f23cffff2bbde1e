"""Declarations of labels and their filters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class Kind(Enum):
    """Type of a column, in Arrow and in the package `datasets`."""

    TEXT = ("string",)
    WHOLE = ("int64",)
    REAL = ("float64",)
    FLAG = ("bool",)
    TEXTS = ("string", "list")
    JSON = ("json",)
    JSONS = ("json", "list")

    @property
    def is_list(self) -> bool:
        return len(self.value) > 1

    @property
    def arrow_type(self) -> "pa.DataType":
        return self._arrow(is_stored=False)

    @property
    def storage_type(self) -> "pa.DataType":
        """Return the type without Arrow's JSON extension, in which rows are assembled."""
        return self._arrow(is_stored=True)

    def _arrow(self, *, is_stored: bool) -> "pa.DataType":
        # The config imports this module, and a command's help should not wait for Arrow.
        import pyarrow as pa

        is_json = self.value[0] == "json"
        plain = pa.type_for_alias("string" if is_json else self.value[0])
        item = pa.json_(plain) if is_json and not is_stored else plain
        return pa.list_(item) if self.is_list else item

    @property
    def feature(self) -> dict[str, object]:
        """Return the feature as `datasets.Features.to_dict` writes it."""
        name = self.value[0]
        item: dict[str, object] = {"_type": "Json"} if name == "json" else {"dtype": name, "_type": "Value"}
        return {"feature": item, "_type": "List"} if self.is_list else item


class Measure(NamedTuple):
    """Distribution of a column of numbers in the report."""

    title: str
    unit: Literal["count", "usd", "seconds", "number"] = "number"
    is_drawn: bool = True
    """True to plot it; measures similar to others are in the table only."""


class Kinds(NamedTuple):
    """Table of rows by the values of a column of texts, or of lists of texts, in the report."""

    title: str
    missing: str = ""
    """Name of the rows without a value."""


FLAW: Final = "flaw"
"""A column of texts that is null for rows without the flaw; the report counts the others."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of a trajectory that labels are computed from."""

    answer: str | None
    """The final answer; None if the trajectory did not reach one."""
    prompt_text: str
    """User and system messages before the first sampled message."""
    sampled_text: str
    """Text of the model in all turns: reasoning, content, and arguments of tool calls."""
    tool_text: str
    refusal: str | None = None
    """The last message's `refusal`, a field of OpenAI's models in place of content."""


class Column(NamedTuple):
    name: str
    kind: Kind
    meaning: str
    figure: Measure | Kinds | Literal["flaw"] | None = None
    """How the report shows it."""
    compute: Callable[[Texts], Any] | None = None
    """Return the value of one trajectory; None for a column that is computed in `stillhouse.dataset`."""


class Reason(NamedTuple):
    name: str
    """Name in the column `drop_reasons`."""
    meaning: str
    """One clause; the field of `dataset.filters` is added to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """A field of `dataset.filters`."""

    key: str
    type: Any
    """Type with constraints, as a pydantic field has it."""
    help: str
    """Description of the field, in errors, forms and docs alike."""
    off: Any = None
    """Value that drops no row."""
    default: Any = ...
    """Value of a config that says nothing; `off` if left out."""

    @property
    def field(self) -> tuple[Any, Any]:
        """Return type and pydantic's description of the field."""
        return self.type, Field(self.off if self.default is ... else self.default, description=self.help)


@dataclass(frozen=True, slots=True)
class Filter:
    """A reason to drop rows, decided from columns backed by Arrow.

    A comparison with null is null and never drops a row.
    """

    reason: Reason
    step: str
    """Step of the funnel, named after the rows that pass; filters of one step are adjacent."""
    reads: tuple[str, ...]
    """Columns of the schema, or of `stillhouse.dataset.select.filters.label_frame`."""
    drops: "Callable[[pd.DataFrame, Any], pd.Series[bool] | None]"
    """Return True for rows to drop, null for rows without the label, None for no row; takes columns and the limit."""
    limit: Limit | None = None
    """The limit, without which the filter is always on."""
    place: int = 250
    """Place in the funnel; those of the house are tens, and duplicates come last."""


@dataclass(frozen=True, slots=True)
class Label:
    """Columns that are measured together, and the filters that go by them."""

    columns: tuple[Column, ...] = ()
    filters: tuple[Filter, ...] = ()
    on_request: str | None = None
    """Name under which it is measured only where a filter goes by it or `dataset.labels.measure` names it; None is
    always measured. Leave it None only for what every stored shard has."""
    wanted: Callable[[Any], bool] | None = None
    """Return whether a `DatasetConfig` needs it, where that is not by its limits alone."""
    file: Literal["candidates", "difficulty"] = "candidates"
    """File of a shard that holds the columns."""
    place: int = 200
    """Place of its columns in the file; those of the house are tens."""

    def is_wanted(self, dataset: Any) -> bool:
        """Return whether a `DatasetConfig` has it measured."""
        if self.on_request in dataset.labels.measure:
            return True
        if self.wanted is not None:
            return self.wanted(dataset)
        return any(rule.limit is not None and rule.limit.key in dataset.limits for rule in self.filters)


def _two(band: Any) -> Any:
    if not isinstance(band, list | tuple) or len(band) != 2:
        raise ValueError("expected [lowest, highest], either of which may be null")
    return band


def _in_order(band: Sequence[Any]) -> Sequence[Any]:
    if None not in band and band[0] > band[1]:
        raise ValueError("the lowest is above the highest, so that no row could pass; swap them")
    return band


def number(kind: type, **bounds: Any) -> Any:
    """Return the type of a limit of one number, or null."""
    return Annotated[kind, Field(**bounds)] | None


def between(kind: type, *, is_optional: bool = True, **bounds: Any) -> Any:
    """Return the type of a limit `[lowest, highest]`, either of which may be null."""
    ends: Any = GenericAlias(tuple, (number(kind, **bounds), ...))
    band = Annotated[ends, Field(min_length=2, max_length=2), BeforeValidator(_two), AfterValidator(_in_order)]
    return band | None if is_optional else band


def above(column: str, reason: Reason, step: str, limit: Limit, place: int = 250) -> Filter:
    return Filter(reason, step, (column,), lambda rows, most: rows[column] > most, limit, place)


def below(column: str, reason: Reason, step: str, limit: Limit, place: int = 250) -> Filter:
    return Filter(reason, step, (column,), lambda rows, least: rows[column] < least, limit, place)


def outside(column: str, low: Reason, high: Reason, step: str, limit: Limit, place: int = 250) -> tuple[Filter, Filter]:
    """Return the filters that drop values below and above a limit `[lowest, highest]`."""
    return (
        Filter(
            low, step, (column,), lambda rows, band: None if band[0] is None else rows[column] < band[0], limit, place
        ),
        Filter(
            high, step, (column,), lambda rows, band: None if band[1] is None else rows[column] > band[1], limit, place
        ),
    )


def present(column: str, reason: Reason, step: str, limit: Limit | None, place: int = 250) -> Filter:
    return Filter(reason, step, (column,), lambda rows, _: rows[column].notna(), limit, place)
