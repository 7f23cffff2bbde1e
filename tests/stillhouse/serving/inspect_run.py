"""inspect_ai against the server in STILLHOUSE_BASE_URL: `inspect_run.py LOGS`; prints what it understood, as JSON."""

import asyncio
import json
import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

MODEL = "openai-api/stillhouse/teacher"
SUM = "Ben has 12 eggs. Ben finds 5 more. How many eggs does Ben have now?"


@tool
def calculator():
    async def execute(expression: str) -> str:
        """Evaluates an arithmetic expression.

        Args:
            expression: Digits, + - * / and parentheses.
        """
        left, right = expression.split("+")
        return str(int(left) + int(right))

    return execute


async def generated():
    config = GenerateConfig(max_tokens=200, stop_seqs=["eggs"], logprobs=True, top_logprobs=2, num_choices=2, seed=3)
    sampled = await get_model(MODEL).generate(SUM, config=config)
    return {
        "sampled": [choice.message.text for choice in sampled.choices],
        "top_logprobs": len(sampled.choices[0].logprobs.content[0].top_logprobs),
    }


def main():
    task = Task(
        dataset=[Sample(input=SUM, target="17")],
        solver=[use_tools(calculator()), generate()],
        scorer=includes(),
        config=GenerateConfig(temperature=0, max_tokens=100),
    )
    [log] = eval(task, model=MODEL, log_dir=sys.argv[1], display="none")
    found = {
        "status": log.status,
        "error": str(log.error),
        "scores": [score.value for score in log.samples[0].scores.values()],
    }
    found["messages"] = [message.role for message in log.samples[0].messages]
    sys.stdout.write(json.dumps(found | asyncio.run(generated())) + "\n")


main()
