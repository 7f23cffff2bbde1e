"""`@label`: functions in a user's file that score trajectories or give reasons against them."""

import copy
import inspect
import logging
import math
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

from stillhouse.dataset.label_input import LabelInput
from stillhouse.errors import ConfigError
from stillhouse.tools.user_file import describe_function, load_module, scorer_hints
from stillhouse.types import JsonObject, Message, StopReason, ToolSchema

logger = logging.getLogger(__name__)

_RESULT_TYPES: Final = frozenset({float, int, bool, str, type(None)})
_LOGGED_COUNTS: Final = frozenset(10**power for power in range(12))


@dataclass(frozen=True, slots=True)
class LabelArgs:
    """Arguments of a label besides the messages."""

    metadata: JsonObject
    """The metadata of the prompt's row, unchanged; empty if it has none."""
    expected_answer: str | None
    tag: str | None
    answer: str | None
    """The final answer; None if the trajectory did not reach one."""
    stop_reason: StopReason
    tools: list[ToolSchema]
    """Full schemas of the tools offered."""
    rollout_key: str
    prompt_id: str
    sample_index: int


@dataclass(frozen=True, eq=False)
class Label:
    """A function that measures a trajectory. Calling it calls the function."""

    name: str
    function: Callable[[LabelArgs, list[Message]], Any] = field(repr=False)

    def __call__(self, args: LabelArgs, messages: list[Message]) -> Any:
        return self.function(args, messages)


def label(function: Callable[[LabelArgs, list[Message]], Any], /) -> Label:
    """Make a label of a function `(args: LabelArgs, messages: list[Message]) -> float | str | None`.

    A number is a score under the function's name (True and False are 1 and 0); a text is an objection, a reason against
    the row; None adds nothing. The function runs in this process, once per trajectory, on copies it may change. Raises
    ConfigError if the function is async or has another signature, or its name is reserved; names function, file and
    line.
    """
    try:
        _check(function)
    except ValueError as error:
        raise ConfigError(f"@label {describe_function(function)}: {error}") from error
    return Label(function.__name__, function)


class FailureLog:
    """Counts failures of a user's functions and warns of the 1st, 10th, 100th and so on of each."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._counts: Counter[str] = Counter()

    def add(self, function: str, rollout_key: str, problem: str) -> None:
        """Count a failure of the function of this name on one trajectory."""
        self._counts[function] += 1
        count = self._counts[function]
        if count in _LOGGED_COUNTS:
            logger.warning(
                "%s: %s gave no score for %d of the trajectories so far, the last of them rollout %s: %s",
                *(self._file, function, count, rollout_key, problem),
            )


class UserLabels:
    """The columns scores and objections, by the functions under `@label` in a Python file.

    A function that raises, or returns neither a number nor a text, gives the score None: not measured, which is not 0.
    Raises ConfigError if the file is missing, does not run, or has no `@label`; names the file, and the line where
    possible.
    """

    def __init__(self, path: Path) -> None:
        # By name: a function with two names in the file counts once.
        module = vars(load_module(path, "dataset.labels.file"))
        self._labels = {value.name: value for value in module.values() if isinstance(value, Label)}
        if not self._labels:
            raise ConfigError(
                f"{path}: has no function under @label. Write `from stillhouse.dataset import label` and put @label "
                "above each function that measures a trajectory"
            )
        self._failures = FailureLog(str(path))

    def __call__(self, inputs: Sequence[LabelInput]) -> Mapping[str, Sequence[Any]]:
        measured = [self._measure(item) for item in inputs]
        return {"scores": [scores for scores, _ in measured], "objections": [reasons for _, reasons in measured]}

    def _measure(self, item: LabelInput) -> tuple[dict[str, float | None], list[str]]:
        scores: dict[str, float | None] = {}
        objections: list[str] = []
        for name, function in self._labels.items():
            try:
                # A copy, so that the row is written as it was sampled.
                result = _checked(function(_args(item), copy.deepcopy(item.trajectory.messages)))
            # A user's function may fail in any way; the row keeps what the others return.
            except (Exception, SystemExit) as error:
                self._failures.add(name, item.trajectory.rollout_key, _user_traceback(error))
                scores[name] = None
                continue
            if isinstance(result, str):
                objections.append(result)
            elif result is not None:
                scores[name] = result
        return scores, objections


def _user_traceback(error: BaseException) -> str:
    """Return the formatted error without the frames of this file."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename == __file__:
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()


def _checked(result: Any) -> float | str | None:
    if result is None:
        return None
    if isinstance(result, str) and result.strip():
        return result.strip()
    if isinstance(result, float | int) and math.isfinite(result):
        return float(result)
    raise TypeError(f"returned {result!r:.200}; expected a finite number, a text that is not blank, or None")


def _args(item: LabelInput) -> LabelArgs:
    trajectory, metadata = item.trajectory, item.metadata
    return LabelArgs(
        metadata=copy.deepcopy(metadata.metadata) if metadata is not None else {},
        expected_answer=metadata.expected_answer if metadata is not None else None,
        tag=metadata.tag if metadata is not None else None,
        answer=item.answer,
        stop_reason=trajectory.stop_reason,
        tools=copy.deepcopy(trajectory.tools),
        rollout_key=trajectory.rollout_key,
        prompt_id=trajectory.prompt_id,
        sample_index=trajectory.sample_index,
    )


def _check(function: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(function):
        raise ValueError("is async; a label is a plain function")
    if function.__name__ == "reward":
        raise ValueError("`reward` is the score of `tools.rewards_file`; give the function another name")
    hint = scorer_hints(function, LabelArgs).get("return", Any)
    results = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if not _RESULT_TYPES.issuperset(results):
        raise ValueError("its result needs a type hint of float, int, bool, str and None, such as `-> float | None`")
