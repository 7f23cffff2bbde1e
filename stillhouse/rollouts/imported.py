"""Trajectories that were sampled elsewhere: rows of a user's file, validated before any stage uses them.

Validation neither adds keys nor converts values: a valid row is kept as it was read.
"""

from collections.abc import Container, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, create_model

from stillhouse.config.expected import expected
from stillhouse.errors import InputError
from stillhouse.prompts.files import read_file
from stillhouse.prompts.row import RowProblem, brief, first_problems
from stillhouse.store.records import trajectory_from_json
from stillhouse.types import JsonObject, StopReason, TokenUsage, Trajectory, Turn


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


def _checked_content(value: Any) -> Any:
    is_parts = isinstance(value, list) and all(isinstance(part, dict) for part in value)
    if value is not None and not isinstance(value, str) and not is_parts:
        raise ValueError("expected text, a list of parts or null")
    return value


class _Message(_Part):
    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[Any, AfterValidator(_checked_content)] = None
    tool_calls: list[Any] | None = None
    """Unchecked: models get calls wrong in every way, and the stages accept them so."""


class _Tool(_Part):
    model_config = ConfigDict(strict=True, extra="allow")

    function: JsonObject


_Count: Any = Literal[tuple(TokenUsage.__annotations__)]


def _fields_of(kind: type, **checked: Any) -> type[BaseModel]:
    """Return a model of a dataclass's fields, some `checked` by types of their own."""
    hints = get_type_hints(kind) | checked
    described: Any = {
        field.name: (hints[field.name], Ellipsis if field.default is MISSING else field.default)
        for field in fields(kind)
    }
    return create_model(kind.__name__, __base__=_Part, **described)


class _Error(_Part):
    kind: str
    message: str
    status: int | None = None


_Row = _fields_of(
    Trajectory,
    rollout_key=Annotated[str, Field(min_length=1)],
    sample_index=Annotated[int, Field(ge=0)],
    messages=Annotated[list[_Message], Field(min_length=1)],
    tools=list[_Tool],
    turns=list[_fields_of(Turn, usage=dict[_Count, int])],  # type: ignore[misc]
    stop_reason=Annotated[StopReason, Strict(False)],
    error=_Error | None,
)


def parse_trajectory(row: JsonObject) -> Trajectory:
    """Return the trajectory in a row as `stillhouse convert` writes it; raise RowProblem if a key or value is wrong."""
    try:
        _Row.model_validate(row)
    except ValidationError as error:
        raise RowProblem(_describe(error.errors(include_url=False)[0])) from error
    return trajectory_from_json(row)


def _describe(problem: Any) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).removeprefix(".")
    match problem["type"]:
        case "missing":
            return f"expected a trajectory, which has the key `{place}`, saw none"
        case "extra_forbidden":
            return f"expected a trajectory, which has no key `{place}`; saw one"
    return f"{place}: {expected(problem)}, saw {brief(problem['input'])}"


class TrajectoryFile:
    """The trajectories of a file of JSON lines that belong to known prompts; iterate once, then `check`."""

    def __init__(self, path: Path, prompt_ids: Container[str]) -> None:
        self._path = path
        self._prompt_ids = prompt_ids
        self._num_rows = 0
        self._num_matched = 0
        self.problems: list[str] = []
        """One entry for each malformed row: place, what was expected, what was seen."""
        self.num_unmatched = 0
        """Rows of other prompts."""

    def __iter__(self) -> Iterator[Trajectory]:
        for row in read_file(self._path, ".jsonl"):
            self._num_rows += 1
            try:
                if row.problem is not None:
                    raise RowProblem(row.problem)
                trajectory = parse_trajectory(row.value)
            except RowProblem as error:
                self.problems.append(f"{row.place}: {error}")
                continue
            if trajectory.prompt_id in self._prompt_ids:
                self._num_matched += 1
                yield trajectory
            else:
                self.num_unmatched += 1

    def check(self, failure_budget: float) -> None:
        """Raise InputError if a larger share of rows than `failure_budget` is malformed, or no prompt is known."""
        if not self._num_rows:
            raise InputError(f"{self._path} is empty; expected trajectories, as `stillhouse convert` writes them")
        num_malformed = len(self.problems)
        if num_malformed > failure_budget * self._num_rows or num_malformed == self._num_rows:
            first = first_problems(self.problems)
            raise InputError(
                f"{num_malformed} of {self._num_rows} rows of {self._path} are no trajectories; expected at most "
                f"runtime.failure_budget = {failure_budget:.1%}. Mend these rows, or make the file with "
                f"`stillhouse convert {self._path} -o FOLDER` where another program wrote it:\n  {first}"
            )
        if not self._num_matched:
            raise InputError(
                f"none of the {self._num_rows} rows of {self._path} belongs to a training prompt: "
                f"{self.num_unmatched} belong to others and {num_malformed} are malformed. Set prompts.source to the "
                "prompts that were converted with it, and prompts.held_out_fraction below 1"
            )
