"""`@reward`: makes a function of a user's file one that scores finished trajectories."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Self, overload

from stillhouse.errors import ConfigError
from stillhouse.tools.context import ToolError
from stillhouse.tools.running import ConcurrencyLimit, run_awaitable, validate_limits
from stillhouse.tools.sandbox import SandboxedFunction, sandboxed_function
from stillhouse.tools.user_file import describe_function, scorer_hints
from stillhouse.types import JsonObject, Message, StopReason

NUMBERS: Final = (float, int, bool)
"""Types a reward may return."""


@dataclass(frozen=True, slots=True)
class RewardArgs:
    """Arguments of a reward besides the messages."""

    metadata: JsonObject
    """The metadata of the prompt's row, verbatim."""
    expected_answer: str | None
    tag: str | None
    stop_reason: StopReason
    environment: Mapping[str, str]
    """The environment variables named in `tools.environment` that are set."""
    rollout_key: str
    prompt_id: str
    sample_index: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Reward:
    """A function that scores a trajectory. Calling it calls the function."""

    args_type: ClassVar[type] = RewardArgs
    is_of_rnow: ClassVar[bool] = False
    """True if rnow's rules apply: rows name their rewards, which are added up."""

    name: str
    function: Callable[..., Any] = field(repr=False)
    is_precondition: bool
    timeout_s: float | None
    """Time limit in seconds; None takes the one of the `RewardSet`."""
    sandboxed: SandboxedFunction | None
    """Where a sandbox finds it; None if it runs in this process."""
    concurrency: ConcurrencyLimit = field(repr=False)

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        precondition: bool,
        timeout_s: float | None,
        sandbox: bool,
        network: bool = False,
        files: Sequence[str] = (),
    ) -> Self:
        """Return the reward that `@reward` makes of a function, with its options; raise ConfigError as `reward`."""
        validate_limits("reward", timeout_s=timeout_s)
        try:
            if scorer_hints(function, cls.args_type).get("return") not in NUMBERS:
                raise ValueError("its result needs the type hint `-> float`")
            sandboxed = sandboxed_function(function, sandbox=sandbox, network=network, files=files)
        except ValueError as error:
            raise ConfigError(f"@reward {describe_function(function)}: {error}") from error
        return cls(
            name=function.__name__,
            function=function,
            is_precondition=precondition,
            timeout_s=timeout_s,
            sandboxed=sandboxed,
            concurrency=ConcurrencyLimit.of(None, sandbox=sandbox),
        )

    def __call__(self, args: Any, messages: list[Message]) -> Any:
        return self.function(args, messages)

    def arguments(self, args: RewardArgs, messages: list[Message]) -> tuple[Any, list[Message]]:
        """Return the arguments that the function is called with."""
        return args, messages

    def apply(self, payload: JsonObject) -> Any:
        """Call the function in another process; `payload` has the fields of `RewardArgs` as `args`, and `messages`."""
        args = {**payload["args"], "stop_reason": StopReason(payload["args"]["stop_reason"])}
        return self.function(*self.arguments(RewardArgs(**args), payload["messages"]))

    def serve(self, payload: JsonObject) -> float:
        """Return the value of a call inside a sandbox, as `apply` takes it."""
        return checked_reward(run_awaitable(self.apply(payload)))


def checked_reward(value: Any) -> float:
    """Return the number that a reward returned; raise ToolError if it is none from 0 to 1."""
    # Numbers of numpy and torch are none of Python's.
    number = float(value) if hasattr(value, "__float__") else math.nan
    if not 0 <= number <= 1:
        raise ToolError(f"returned {value!r}; expected a number from 0 to 1")
    return number


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
    """Make a reward of a function `(args: RewardArgs, messages: list[Message]) -> float` that returns 0 to 1.

    A plain function runs in a thread, or on a main thread once it was refused a signal outside of one. An `async` one
    runs on the main thread of a process that all `async` rewards of its file share.

    If a `precondition` returns 0, the trajectory's total is 0 and the other rewards are not run. The other options are
    those of `tool`. Raise ConfigError, with function, file and line, if the signature is another one, the timeout is
    not positive, or a file in `files` does not exist.
    """
    decorate = partial(
        Reward.of, precondition=precondition, timeout_s=timeout_s, sandbox=sandbox, network=network, files=files
    )
    return decorate if function is None else decorate(function)
