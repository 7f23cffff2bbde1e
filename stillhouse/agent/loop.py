"""The agent loop of one rollout: ask, run the tools called, ask again, until the rule of a turn ends it.

It knows neither HTTP nor journal nor retries; these are in the two callables it is given. Where the callables are
deterministic, as replay from the journal is, so is the loop.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable

from stillhouse.agent.turns import CallTools, End, TurnRules, TurnState, next_action
from stillhouse.inference.completion import Completion
from stillhouse.inference.keys import RequestDigest
from stillhouse.inference.sampling import ToolChoice
from stillhouse.tools import ToolResult
from stillhouse.types import Message, Turn

Complete = Callable[[int, ToolChoice], Awaitable[Completion]]
"""(turn, whether tools may be called) -> completion of the conversation so far; turns count from 0."""
CallTool = Callable[[int, int, str, str], Awaitable[ToolResult]]
"""(turn, index of the call in its turn, name, arguments as written) -> result."""


class Conversation:
    """The messages of a rollout so far, the facts of its completions, and the digest of its next request.

    It outlives the agent loop, so that a rollout that is cut off keeps its part. Messages are appended and never
    changed: each is serialised once for the digests of all requests that hold it.
    """

    def __init__(self, messages: Iterable[Message]) -> None:
        self.messages: list[Message] = []
        self.turns: list[Turn] = []
        self.digest = RequestDigest()
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self.digest.add(message)


async def run_agent(
    conversation: Conversation, rules: TurnRules, state: TurnState, *, complete: Complete, call_tool: CallTool
) -> End:
    """Continue the conversation until it ends, and return why it did.

    The calls of one turn run at the same time. Exceptions of the two callables pass through; `conversation` keeps what
    was said before.
    """
    while True:
        completion = await complete(state.num_turns, state.tool_choice)
        conversation.add(completion.message)
        turn = completion.turn
        state, action = next_action(rules, state, completion.message, turn.finish_reason)
        conversation.turns.append(turn)
        if isinstance(action, End):
            return action
        if isinstance(action, CallTools):
            results = await asyncio.gather(
                *(
                    call_tool(state.num_turns - 1, index, call.name, call.arguments)
                    for index, call in enumerate(action.calls)
                )
            )
            messages = [call.result(result.content) for call, result in zip(action.calls, results, strict=True)]
            num_errors = sum(result.error_kind is not None for result in results)
            conversation.turns[-1] = dataclasses.replace(turn, num_tool_errors=num_errors)
        else:
            messages = action.messages
            conversation.turns[-1] = dataclasses.replace(turn, num_refused_calls=action.num_refused_calls)
        for message in messages:
            conversation.add(message)
