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

from stillhouse.dataset.labelling.subject import Subject
from stillhouse.errors import ConfigError
from stillhouse.tools.user_file import describe_function, load_module, scorer_hints
from stillhouse.types import JsonObject, Message, StopReason, ToolSchema

logger = logging.getLogger(__name__)

_TOLD_AT: Final = frozenset(10**power for power in range(12))


class Failures:
    """Counts failures by function and warns of the 1st, the 10th, the 100th and so on.

    Args:
        source: the file the functions stand in, for messages.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._counts: Counter[str] = Counter()

    def add(self, function: str, trajectory: str, problem: str) -> None:
        """Counts one.

        Args:
            function: its name.
            trajectory: key of the rollout it was given.
            problem: what went wrong, told with the warning.
        """
        self._counts[function] += 1
        count = self._counts[function]
        if count in _TOLD_AT:
            logger.warning(
                "%s: %s gave no score for %d of the trajectories so far, the last of them rollout %s: %s",
                *(self._source, function, count, trajectory, problem),
            )


_RESULTS: Final = frozenset({float, int, bool, str, type(None)})


@dataclass(frozen=True, slots=True)
class LabelArgs:
    """What a label is told beside the messages."""

    metadata: JsonObject
    """The metadata of the prompt's row, as it was; empty where it has none."""
    expected_answer: str | None
    tag: str | None
    answer: str | None
    """The final answer; None where the trajectory did not come to one."""
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
    """Makes a label of a function `(args: LabelArgs, messages: list[Message]) -> float | str | None`.

    A number it returns is a score under its name, True and False count as 1 and 0; a text is an objection, a reason
    against the row; None says nothing. It runs in this process, for every trajectory anew and on copies of its own.

    Raises:
        ConfigError: the function is async or has another signature, or its name is taken; the message names function,
            file and line.
    """
    try:
        _check(function)
    except ValueError as error:
        raise ConfigError(f"@label {describe_function(function)}: {error}") from error
    return Label(function.__name__, function)


class UserLabels:
    """The columns scores and objections, by the functions under `@label` in a Python file.

    A function that raises, or returns what is neither a number nor a text, gives the score None for that row: nothing
    was measured, which is not 0. The log tells of its 1st, its 10th, its 100th failure, and so on.

    Args:
        path: the file.

    Raises:
        ConfigError: no such file, it does not run, or it has no `@label`; the message names the file, and the line
            where there is one.
    """

    def __init__(self, path: Path) -> None:
        # By name: a function that the file gives two names counts once.
        module = vars(load_module(path, "dataset.labels.file"))
        self._labels = {one.name: one for one in module.values() if isinstance(one, Label)}
        if not self._labels:
            raise ConfigError(
                f"{path}: has no function under @label. Write `from stillhouse.dataset import label` and put @label "
                "above each function that measures a trajectory"
            )
        self._failures = Failures(str(path))

    def __call__(self, subjects: Sequence[Subject]) -> Mapping[str, Sequence[Any]]:
        """The columns, a dict of scores and a list of objections for each subject."""
        measured = [self._measure(one) for one in subjects]
        return {"scores": [scores for scores, _ in measured], "objections": [reasons for _, reasons in measured]}

    def _measure(self, subject: Subject) -> tuple[dict[str, float | None], list[str]]:
        scores: dict[str, float | None] = {}
        objections: list[str] = []
        for name, one in self._labels.items():
            try:
                # A row is written as it was sampled, whatever the function does with what it is given.
                result = _checked(one(_args(subject), copy.deepcopy(subject.trajectory.messages)))
            # A user's function may fail in any way; the row keeps what the others say.
            except (Exception, SystemExit) as error:
                self._failures.add(name, subject.trajectory.rollout_key, _told(error))
                scores[name] = None
                continue
            if isinstance(result, str):
                objections.append(result)
            elif result is not None:
                scores[name] = result
        return scores, objections


def _told(error: BaseException) -> str:
    """The error with the lines of the user's file that led to it, and no others."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    return "".join(traceback.format_exception(type(error), error, own)).rstrip()


def _checked(result: Any) -> float | str | None:
    """What a label returned, where it may return that."""
    if result is None:
        return None
    if isinstance(result, str) and result.strip():
        return result.strip()
    if isinstance(result, float | int) and math.isfinite(result):
        return float(result)
    raise TypeError(f"returned {result!r:.200}; expected a finite number, a text that is not blank, or None")


def _args(subject: Subject) -> LabelArgs:
    trajectory, metadata = subject.trajectory, subject.metadata
    return LabelArgs(
        metadata=copy.deepcopy(metadata.metadata) if metadata is not None else {},
        expected_answer=metadata.expected_answer if metadata is not None else None,
        tag=metadata.tag if metadata is not None else None,
        answer=subject.answer,
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
    hints = scorer_hints(function, LabelArgs)
    given = hints.get("return", Any)
    results = get_args(given) if get_origin(given) in (Union, UnionType) else (given,)
    if not _RESULTS.issuperset(results):
        raise ValueError("its result needs a type hint of float, int, bool, str and None, such as `-> float | None`")
