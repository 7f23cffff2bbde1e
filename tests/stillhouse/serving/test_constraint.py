"""Answers whose form a grammar guarantees; the random model below would write nothing of the kind by itself."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stillhouse.chat.parse import parse_completion
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.serving.chat_request import ChatRequest
from stillhouse.serving.constraint import GrammarCompiler
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.serving.grammar import Thought, chat_grammar, thought_after
from stillhouse.serving.protocol import ApiError

pytest.importorskip("llguidance", reason="the extra `serve`")

SCHEMA = {
    "type": "object",
    "properties": {"size": {"$ref": "#/$defs/Size"}, "count": {"type": "integer", "minimum": 0, "maximum": 20}},
    "required": ["size", "count"],
    "additionalProperties": False,
    "$defs": {"Size": {"enum": ["small", "großartig"]}},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "box", "schema": SCHEMA, "strict": True}}
OBJECT = {"type": "json_object"}
NAMED = {"type": "function", "function": {"name": "mark"}}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **fields}}


TOOLS = [tool("pack"), tool("mark", parameters={"type": "object", "properties": {}, "additionalProperties": False})]

Answers = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("embedded:student")


@pytest.fixture
def grammar_of(tokenizer: PreTrainedTokenizerBase) -> Callable[..., str | None]:
    def make(thought: Thought = "impossible", **fields: Any) -> str | None:
        body = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields})
        return chat_grammar(body, thought, {str(token) for token in tokenizer.added_tokens_decoder.values()})

    return make


@pytest.fixture
def generations(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, grammar_of: Callable[..., str | None]
) -> Callable[..., list[Generation]]:
    """Twelve hot completions within the grammar of a request."""

    def sample(**fields: Any) -> list[Generation]:
        grammar = grammar_of(**fields)
        assert grammar is not None
        constraint = GrammarCompiler(tokenizer, model.config.vocab_size, {2}).compile(grammar, "tools")
        requests = [
            GenerationRequest(
                [5, 6], 900, temperature=3.0, seed=seed, stop_ids=frozenset({2}), constraint=constraint.copy()
            )
            for seed in range(12)
        ]
        return Generator(model).run(requests)

    return sample


@pytest.fixture
def answers(tokenizer: PreTrainedTokenizerBase, generations: Callable[..., list[Generation]]) -> Answers:
    """The messages that twelve hot completions make, of which none is cut."""

    def parse(**fields: Any) -> list[dict[str, Any]]:
        sampled = generations(**fields)
        assert {generation.finish_reason for generation in sampled} == {"stop"}
        texts = [tokenizer.decode(generation.completion_ids[:-1]) for generation in sampled]
        return [{**parse_completion(text)} for text in texts]

    return parse


def called(answers: list[dict[str, Any]]) -> list[list[str]]:
    """Names of each answer's calls, whose arguments are checked."""
    names = []
    for answer in answers:
        functions = [call["function"] for call in answer.get("tool_calls", [])]
        for function in functions:
            expected = SCHEMA if function["name"] == "pack" else TOOLS[1]["function"]["parameters"]
            jsonschema.validate(json.loads(function["arguments"]), expected)
        names.append([function["name"] for function in functions])
    return names


def test_answers_fit_their_schema(answers: Answers) -> None:
    values = [json.loads(answer["content"]) for answer in answers(response_format=FORMAT)]
    for value in values:
        jsonschema.validate(value, SCHEMA)
    assert {value["size"] for value in values} == {"small", "großartig"}


def test_a_required_call_is_one_of_the_tools_or_several(answers: Answers) -> None:
    names = called(answers(tools=TOOLS, tool_choice="required"))
    assert all(names)
    assert {name for each in names for name in each} == {"pack", "mark"}


def test_calls_that_must_not_be_parallel_are_one(answers: Answers) -> None:
    names = called(answers(tools=TOOLS, tool_choice="required", parallel_tool_calls=False))
    assert {len(each) for each in names} == {1}


def test_a_named_tool_is_the_one_that_is_called(answers: Answers) -> None:
    names = called(answers(tools=TOOLS, tool_choice=NAMED))
    assert {name for each in names for name in each} == {"mark"}


def test_with_tools_and_a_schema_an_answer_is_a_call_or_fits(answers: Answers) -> None:
    for answer, names in zip(given := answers(tools=TOOLS, response_format=FORMAT), called(given), strict=True):
        if not names:
            jsonschema.validate(json.loads(answer["content"]), SCHEMA)


def test_text_around_calls_of_strict_tools_is_free(generations: Callable[..., list[Generation]]) -> None:
    sampled = generations(tools=[tool("pack", strict=True)])
    assert len({tuple(generation.completion_ids[:5]) for generation in sampled}) == len(sampled)


def test_reasoning_comes_before_the_form(answers: Answers, generations: Callable[..., list[Generation]]) -> None:
    end = 618
    opened = [one for one in generations(response_format=FORMAT, thought="open") if one.finish_reason == "stop"]
    assert all(end in generation.completion_ids for generation in opened)
    possible = generations(response_format=FORMAT, thought="possible")
    assert all(g.completion_ids[0] == 617 or end not in g.completion_ids for g in possible)


@pytest.mark.parametrize(
    ("end", "template", "thought"),
    [
        ("assistant\n", "no reasoning", "impossible"),
        ("assistant\n", "... '<think>' ...", "possible"),
        ("assistant\n<think>\n", "... '<think>' ...", "open"),
        ("<think>\n\n</think>\n\n", "... '<think>' ...", "impossible"),
    ],
)
def test_the_prompt_tells_whether_an_answer_reasons(end: str, template: str, thought: str) -> None:
    assert thought_after(end, template) == thought


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": {"type": "text"}}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"},
     {"tools": [tool("pack", strict=True)], "tool_choice": "none"}, {"parallel_tool_calls": False}],
)  # fmt: skip
def test_a_request_that_guarantees_nothing_has_no_grammar(
    grammar_of: Callable[..., str | None], fields: dict[str, Any]
) -> None:
    assert grammar_of(**fields) is None


@pytest.mark.parametrize("names", [set(), {"<tool_call>", "</tool_call>", "<think>", "</think>"}])
def test_grammars_are_valid_for_tokenizers_with_and_without_tokens_for_tags(
    tokenizer: PreTrainedTokenizerBase, names: set[str]
) -> None:
    compiler = GrammarCompiler(tokenizer, 619, {2})
    for fields in (
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": [tool('odd "name"\\é', strict=True)]},
        {"tools": TOOLS, "response_format": OBJECT},
    ):
        body = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields})
        for thought in ("open", "possible", "impossible"):
            grammar = chat_grammar(body, thought, names)  # type: ignore[arg-type]
            assert grammar is not None
            compiler.compile(grammar, "tools")


def test_a_schema_that_cannot_be_enforced_is_refused_if_it_is_strict(
    tokenizer: PreTrainedTokenizerBase, grammar_of: Callable[..., str | None]
) -> None:
    compiler = GrammarCompiler(tokenizer, 619, {2})
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}

    def compile_with(is_strict: bool) -> None:
        described = {"name": "a", "schema": schema, "strict": is_strict}
        grammar = grammar_of(response_format={"type": "json_schema", "json_schema": described})
        assert grammar is not None
        compiler.compile(grammar, "response_format")

    compile_with(False)
    with pytest.raises(ApiError, match=r"response_format cannot be enforced.*not"):
        compile_with(True)


def test_log_probabilities_are_those_without_the_grammar(
    model: PreTrainedModel, generations: Callable[..., list[Generation]], assert_forced: Callable[..., None]
) -> None:
    sampled = generations(response_format=FORMAT)
    assert_forced(model, [[5, 6]] * len(sampled), sampled, temperature=3.0)
