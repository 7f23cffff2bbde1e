"""`rnow.core` for tools and rewards written for rnow, with the meaning of rnow 0.4.37 (rnow/core, rnow/models.py).

rnow's rules hold for totals: rewards are added up, preconditions included, and a row's `rewards` name those that score
it. Ours hold where something fails: a reward that raises leaves its trajectory without a total, not at 0, and so does a
judge whose answer holds no score. `sandbox=True` is our jail, without network, not the container that a row names.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

from stillhouse.sellers import OPENAI
from stillhouse.tools.context import ToolArgs
from stillhouse.tools.decorator import tool as stillhouse_tool
from stillhouse.tools.rewards import Reward
from stillhouse.tools.rewards import RewardArgs as StillhouseRewardArgs
from stillhouse.types import JsonObject, Message

__all__ = ["RewardArgs", "ToolArgs", "get_response", "llm_judge", "reward", "tool"]

_ANSWER_KEYS: Final = ("expected_answer", "answer", "ground_truth")
"""Keys of a row from which its expected answer may have been taken."""
_JUDGE_URL: Final = f"{OPENAI.base_url}/responses"
_BINARY_SCORE: Final[JsonObject] = {
    "type": "object",
    "properties": {"score": {"type": "integer", "enum": [0, 1], "description": "1 if the criteria are met, else 0"}},
    "required": ["score"],
    "additionalProperties": False,
}


@dataclass(slots=True)
class RewardArgs:
    """Arguments of a reward besides the messages."""

    metadata: JsonObject = field(default_factory=dict)
    """The metadata of the row, its expected answer included."""
    variables: JsonObject = field(default_factory=dict)
    secrets: Mapping[str, Any] = field(default_factory=dict)
    """The environment variables of the process; in a sandbox those that `tools.environment` names."""


class RnowReward(Reward):
    args_type: ClassVar[type] = RewardArgs
    is_of_rnow: ClassVar[bool] = True

    def arguments(self, args: StillhouseRewardArgs, messages: list[Message]) -> tuple[RewardArgs, list[Message]]:
        """Return arguments as rnow gives them; messages without content have an empty text, as in its rows."""
        metadata = dict(args.metadata)
        if args.expected_answer is not None:
            metadata = {**dict.fromkeys(_ANSWER_KEYS, args.expected_answer), **metadata}
        if args.tag is not None:
            metadata.setdefault("tag", args.tag)
        secrets = {**os.environ, **args.environment}
        given = RewardArgs(metadata, args.metadata.get("variables") or {}, secrets)
        return given, [{**message, "content": message.get("content") or ""} for message in messages]


def tool(function: Callable[..., Any] | None = None, *, sandbox: bool = False, timeout: float | None = None) -> Any:
    """Make a tool, with `timeout` in seconds; a parameter called `args` is a `ToolArgs` without saying so."""
    if function is None:
        return partial(tool, sandbox=sandbox, timeout=timeout)
    if "args" in function.__code__.co_varnames[: function.__code__.co_argcount]:
        function.__annotations__.setdefault("args", ToolArgs)
    return stillhouse_tool(timeout_s=timeout, sandbox=sandbox)(function)


def reward(
    function: Callable[..., Any] | None = None,
    *,
    precondition: bool = False,
    sandbox: bool = False,
    timeout: float | None = None,
) -> Any:
    """Make a reward, with `timeout` in seconds."""
    if function is None:
        return partial(reward, precondition=precondition, sandbox=sandbox, timeout=timeout)
    return RnowReward.of(function, precondition=precondition, timeout_s=timeout, sandbox=sandbox)


def get_response(messages: list[Any]) -> str:
    """Return text of the last assistant message; of content in parts those of type `text`, or all if there are none."""
    content = next((message.get("content") for message in reversed(messages) if message.get("role") == "assistant"), "")
    if isinstance(content, list):
        texts = [part.get("text", "") for part in content if part.get("type") == "text"]
        return "".join(texts or (part.get("text", "") or part.get("thinking", "") for part in content))
    return content or ""


async def llm_judge(
    prompt: str,
    *,
    api_url: str | None = None,
    api_key: str | None = None,
    secrets: Mapping[str, Any] | None = None,
    model: str = "gpt-5-nano",
    temperature: float = 0.0,
    max_tokens: int = 1024,
    timeout: float = 520,
    schema: JsonObject | None = None,
    score_key: str = "score",
    **kwargs: Any,
) -> float:
    """Return the score that a model gives, as JSON of `schema`, by OpenAI's Responses API.

    `api_url` is LLM_JUDGE_API_URL if None, else OpenAI's; `api_key` is OPENAI_API_KEY or LLM_JUDGE_API_KEY of `secrets`
    (see `RewardArgs.secrets`), then LLM_JUDGE_API_KEY or OPENAI_API_KEY of the environment. `temperature` is not sent
    for gpt-5 models, which refuse it. Without a `schema` the score is 0 or 1; `score_key` is its key in the answer.
    `kwargs` are further fields of the request.

    Raise ValueError if there is no key, or the answer holds no score, aiohttp.ClientError if the request failed.
    """
    # A third of a second, which only judges need.
    import aiohttp

    keys = [api_key]
    keys += [(secrets or {}).get(name) for name in ("OPENAI_API_KEY", "LLM_JUDGE_API_KEY")]
    keys += [os.environ.get(name) for name in ("LLM_JUDGE_API_KEY", "OPENAI_API_KEY")]
    key = next(filter(None, keys), None)
    if key is None:
        raise ValueError("llm_judge has no API key: set OPENAI_API_KEY or LLM_JUDGE_API_KEY, or pass api_key")
    answer_format = {"type": "json_schema", "name": "judge_score", "strict": True, "schema": schema or _BINARY_SCORE}
    body: JsonObject = {
        "model": model,
        "input": [{"role": "user", "content": prompt}],
        "max_output_tokens": max_tokens,
        "text": {"format": answer_format},
        **kwargs,
    }
    if not model.startswith("gpt-5"):
        body["temperature"] = temperature
    url = api_url or os.environ.get("LLM_JUDGE_API_URL", _JUDGE_URL)
    limit = aiohttp.ClientTimeout(total=timeout)
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.post(url, headers={"Authorization": f"Bearer {key}"}, json=body) as response,
    ):
        response.raise_for_status()
        return _score(await response.json(), score_key)


def _score(answer: JsonObject, key: str) -> float:
    """Return the score in an answer of the Responses API, or of chat completions."""
    if "choices" in answer:
        texts = [answer["choices"][0]["message"]["content"]]
    else:
        contents = [item.get("content", []) for item in answer.get("output", []) if item.get("type") == "message"]
        texts = [
            part["text"] for content in contents for part in content if part.get("type") in ("text", "output_text")
        ]
    for text in texts:
        try:
            return float(json.loads(text)[key])
        except (ValueError, TypeError, KeyError):
            continue
    raise ValueError(
        f"the judge's answer holds no number under {key!r}: {texts or answer.get('incomplete_details')!r:.300}"
    )
