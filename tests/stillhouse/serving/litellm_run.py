"""LiteLLM against a server: `litellm_run.py URL`; prints what it understood, as JSON."""

import json
import sys

import litellm

SUM = [{"role": "user", "content": "Ben has 12 eggs. Ben finds 5 more. How many eggs does Ben have now?"}]
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluates an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


def ask(**fields):
    return litellm.completion(
        model="openai/teacher", api_base=sys.argv[1], api_key="none", messages=SUM, seed=1, max_tokens=200, **fields
    )


def main():
    whole = ask(tools=[CALCULATOR], temperature=0)
    found = {
        "whole": whole.choices[0].model_dump(),
        "plain": ask(temperature=0).choices[0].message.content,
        "cut": ask(stop=["ment", "culat"], temperature=0, logprobs=True).choices[0].model_dump(),
    }
    for name, fields in {"refused": {"extra_body": {"made_up": 1}}, "refused_stream": {"stream": True}}.items():
        try:
            ask(**fields)
        except litellm.BadRequestError as error:
            found[name] = str(error)
    sys.stdout.write(json.dumps(found) + "\n")


main()
