"""Measures an embedded model, which answers shop prompts with a working calculator."""

import ast
import json
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from stillhouse.embedded.shop import CALCULATOR_SCHEMA, Message

_MAX_TURNS: Final = 5
_MAX_NEW_TOKENS: Final = 64
_BATCH_SIZE: Final = 100
_CALL: Final = re.compile(r"<tool_call>\n(.*)\n</tool_call>", re.DOTALL)
_ANSWER: Final = re.compile(r"The answer is (-?\d+)\.")
_OPERATIONS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def accuracy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[dict[str, Any]], *, temperature: float
) -> float:
    """Share of prompts, rows of `prompts.jsonl`, that the model answers as expected.

    Temperature 0 decodes greedily; another samples from the whole vocabulary with torch's global generator.
    """
    num_right = 0
    for first in range(0, len(prompts), _BATCH_SIZE):
        batch = prompts[first : first + _BATCH_SIZE]
        answers = solve(model, tokenizer, [row["prompt"] for row in batch], temperature=temperature)
        expected = [row["metadata"]["expected_answer"] for row in batch]
        num_right += sum(map(operator.eq, answers, expected))
    return num_right / len(prompts)


def solve(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, questions: Sequence[str], *, temperature: float
) -> list[str | None]:
    """The final number of each question in order; None without one."""
    conversations: list[list[Message]] = [[{"role": "user", "content": question}] for question in questions]
    answers: list[str | None] = [None] * len(questions)
    pending = list(range(len(questions)))
    for _ in range(_MAX_TURNS):
        completions = _complete(model, tokenizer, [conversations[index] for index in pending], temperature)
        unfinished: list[int] = []
        for index, completion in zip(pending, completions, strict=True):
            call = _CALL.search(completion)
            if call is None:
                match = _ANSWER.search(completion)
                answers[index] = match[1] if match else None
            elif (turn := _run_call(call[1])) is not None:
                conversations[index].extend(turn)
                unfinished.append(index)
        pending = unfinished
        if not pending:
            break
    return answers


@torch.no_grad()
def _complete(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, conversations: list[list[Message]], temperature: float
) -> list[str]:
    texts = tokenizer.apply_chat_template(
        conversations, tools=[CALCULATOR_SCHEMA], add_generation_prompt=True, tokenize=False
    )
    # In two steps, since apply_chat_template takes `padding_side` for a variable of the template.
    inputs = tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    output = model.generate(**inputs, max_new_tokens=_MAX_NEW_TOKENS, **sampling)
    return tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def _run_call(text: str) -> list[Message] | None:
    """The assistant turn and the tool's result; None if the call or its expression is malformed."""
    try:
        call = json.loads(text)
        name, arguments = call["name"], call["arguments"]
        value = _evaluate(ast.parse(arguments["expression"], mode="eval").body)
    except (ValueError, SyntaxError, KeyError, TypeError):
        return None
    if name != CALCULATOR_SCHEMA["function"]["name"]:
        return None
    function = {"name": name, "arguments": arguments}
    return [
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": str(value)},
    ]


def _evaluate(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_evaluate(left), _evaluate(right))
    raise ValueError(f"not an expression of integers with + - *: {ast.unparse(node)}")
