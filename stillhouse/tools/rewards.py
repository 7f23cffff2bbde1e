"""`@reward`: makes a function of a user's file one that scores finished trajectories."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, overload

from stillhouse.errors import ConfigError
from stillhouse.tools.limits import Places, check_limits
from stillhouse.tools.sandbox import Source, source_of
from stillhouse.tools.signature import hints_of_scorer, place_of
from stillhouse.types import JsonObject, Message, StopReason

NUMBERS: Final = (float, int, bool)
"""What counts as a number where a reward is returned."""


@dataclass(frozen=True, slots=True)
class RewardArgs:
    """What a reward is told beside the messages."""

    metadata: JsonObject
    """The metadata of the prompt's row, as it was."""
    expected_answer: str | None
    tag: str | None
    stop_reason: StopReason
    environment: Mapping[str, str]
    """The environment variables that `tools.environment` names, where they are set."""
    rollout_key: str
    prompt_id: str
    sample_index: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Reward:
    """A function that scores a trajectory. Calling it calls the function."""

    name: str
    function: Callable[..., Any] = field(repr=False)
    is_precondition: bool
    timeout_s: float | None
    """Longest run in seconds; None leaves it to the book."""
    source: Source | None
    """Where a sandbox finds it; None where it runs in this process."""
    places: Places = field(repr=False)

    def __call__(self, args: RewardArgs, messages: list[Message]) -> Any:
        return self.function(args, messages)

    def serve(self, payload: JsonObject) -> object:
        """Runs inside a sandbox; `payload` has the fields of `RewardArgs` under `args`, and `messages`."""
        told = {**payload["args"], "stop_reason": StopReason(payload["args"]["stop_reason"])}
        value = self(RewardArgs(**told), payload["messages"])
        return asyncio.run(value) if inspect.iscoroutine(value) else value


@overload
def reward(function: Callable[..., Any], /) -> Reward: ...
@overload
def reward(
    *,
    precondition: bool = False,
    timeout_s: float | None = None,
    sandbox: bool = False,
    network: bool = False,
    files: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Reward]: ...
def reward(
    function: Callable[..., Any] | None = None,
    /,
    *,
    precondition: bool = False,
    timeout_s: float | None = None,
    sandbox: bool = False,
    network: bool = False,
    files: Sequence[str] = (),
) -> Reward | Callable[[Callable[..., Any]], Reward]:
    """Makes a reward of a function `(args: RewardArgs, messages: list[Message]) -> float` that returns 0 to 1.

    Args:
        function: plain or `async`; given when the decorator is written without parentheses.
        precondition: 0 makes the trajectory's total 0, and the other rewards are not run.
        timeout_s: longest run in seconds; None takes `tools.timeout_s` of the config.
        sandbox: runs in a jail, as `stillhouse.tools.sandbox` describes; else it is part of this process and can do
            what the process can.
        network: a sandboxed reward may use this machine's network, local services among it.
        files: files and folders that a sandboxed reward may read; relative paths begin at the folder of its file.

    Raises:
        ConfigError: the signature is another one, the timeout is not above 0, or what the sandbox is to let through is
            missing; the message names function, file and line.
    """
    check_limits("reward", timeout_s=timeout_s)

    def decorate(decorated: Callable[..., Any]) -> Reward:
        try:
            _check_signature(decorated)
            source = source_of(decorated, sandbox=sandbox, network=network, files=files)
        except ValueError as error:
            raise ConfigError(f"@reward {place_of(decorated)}: {error}") from error
        return Reward(
            name=decorated.__name__,
            function=decorated,
            is_precondition=precondition,
            timeout_s=timeout_s,
            source=source,
            places=Places.of(None, sandbox=sandbox),
        )

    return decorate if function is None else decorate(function)


def _check_signature(function: Callable[..., Any]) -> None:
    if hints_of_scorer(function, RewardArgs).get("return") not in NUMBERS:
        raise ValueError("its result needs the type hint `-> float`")
