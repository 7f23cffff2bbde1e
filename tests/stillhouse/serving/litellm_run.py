"""LiteLLM against a server: `litellm_run.py URL`; prints what it understood, as JSON."""

import json
import sys

import litellm
from pydantic import BaseModel

SUM = [{"role": "user", "content": "Ben has 12 eggs. Ben finds 5 more. How many eggs does Ben have now?"}]
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluates an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


class Box(BaseModel):
    full: bool


def ask(**fields):
    return litellm.completion(
        model="openai/teacher", api_base=sys.argv[1], api_key="none", messages=SUM, seed=1, max_tokens=200, **fields
    )


def main():
    whole = ask(tools=[CALCULATOR], temperature=0)
    chunks = list(ask(temperature=0, stream=True, stream_options={"include_usage": True}))
    streamed = litellm.stream_chunk_builder(chunks, messages=SUM)
    required = litellm.stream_chunk_builder(list(ask(tools=[CALCULATOR], tool_choice="required", stream=True)))
    found = {
        "whole": whole.choices[0].model_dump(),
        "plain": ask(temperature=0).choices[0].message.content,
        "streamed": streamed.choices[0].message.content,
        "usage": streamed.usage.total_tokens,
        "required": required.choices[0].model_dump(),
        "structured": ask(response_format=Box).choices[0].message.content,
        "cut": ask(stop=["ment", "culat"], temperature=0, logprobs=True).choices[0].model_dump(),
    }
    try:
        ask(extra_body={"made_up": 1})
    except litellm.BadRequestError as error:
        found["refused"] = str(error)
    sys.stdout.write(json.dumps(found) + "\n")


main()
