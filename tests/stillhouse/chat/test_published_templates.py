"""The chat templates of some seventy models, as llama.cpp's Python bindings carry them in their source distribution."""

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stillhouse.chat.message_form import reads_literal_calls, template_message
from stillhouse.chat.next_turn import next_turn_ids, stop_token_ids
from stillhouse.chat.parse import parse_completion
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.round_trip import RoundTrip
from stillhouse.chat.samples import render_samples, render_spans
from stillhouse.chat.template import render, render_text
from stillhouse.chat.template_defaults import with_template_defaults
from stillhouse.serving.protocol import ChatRequest

pytestmark = pytest.mark.slow

PACKAGE = "llama-cpp-python==0.3.36"
KNOWN = Path(__file__).with_name("published_templates.jsonl")
"""Outcomes by template, which `docs/reference/models.md` tells."""
SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<\uff5c[^\uff5c<>]{1,40}\uff5c>|<\|?[a-z_]{2,20}\|?>|<\|[a-z_]+>|<[a-z_]+\|>|<seed:[a-z_]+>"
    r"|</(?:s|think|tool_call|tool_calls|tool_response|assistant)>|<s>|\[/?[A-Z_]{3,30}\]|\]~[a-z!]+\[|\[e~\["
    r"|<SPECIAL_\d+>"
)
MARKUP = re.compile(r"</?(?!start_of|end_of|begin_of|sep>|s>|user>|assistant>|system>)[a-z_]+>|<\uff5ctool.*")
"""Tokens that are not special in the tokenizers of the models that have them."""
DEEPSEEK_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"
END_TOKENS = {
    "Apriel": "<|end|>", "ByteDance": "<seed:eos>", "Cohere": "<|END_OF_TURN_TOKEN|>", "DeepSeek": DEEPSEEK_END,
    "Devstral": "</s>", "GLM": "<|endoftext|>", "GigaChat": "</s>", "Kimi-K3": "<|end_of_msg|>",
    "Laguna": "</assistant>", "MiniMax-M1": "<end_of_sentence>", "MiniMax": "[e~[", "Ministral": "</s>",
    "Mistral": "</s>", "Nemotron-Nano-v2": "<SPECIAL_12>", "Phi": "<|endoftext|>", "Reka": "<sep>",
    "Solar": "<|endoftext|>", "Spark": DEEPSEEK_END, "deepseek": DEEPSEEK_END,
    "gemma-2": "<end_of_turn>", "gemma-4": "<turn|>",
    "gpt-oss": "<|return|>", "granite": "<|end_of_text|>", "ling": "<|role_end|>", "muse": "<|eot|>",
    "tencent": "<\uff5chy_eos:opensource\uff5c>",
}  # fmt: skip
"""The tokenizer's end token by part of the file's name; `<|im_end|>` or `<|eot_id|>` for the others."""

THINKING = ("thinking: true", "enable_thinking: true", "reasoning_effort: high")
"""Settings that turn thinking on, where a template reads the variable."""
REASONS = {
    "does not write the call": "not every call is written",
    "is not in it": "text beside calls is dropped",
    "stands behind its calls": "text beside calls is written behind them",
    "writes more of it behind": "text beside calls ends the turn before them",
    "no special end-of-turn token": "no special token ends the turn",
    "closes the thinking block": "thinking is off",
    "not prefix preserving": "the history is rendered differently",
}
"""Reasons of refusals as the page has them, by a part of the error."""
LABELS = ("is not in it", "stands behind its calls")
"""Those of labels; the others are of the rendering."""
FIRST_KINDS = ("plain", "two turns", "system", "tool", "text and tool", "reasoning")
MARKUP_WORDS = re.compile(
    r"\W|\b(?:[012]|Action|BEGIN|DSML|FINAL|RESPONSE|TOOLCALL|all|analysis|arg_key|arg_value|arguments?|assistant|atem"
    r"|call|call0000[01]|channel|commentary|final|function|function_calls|functions|id|index|invoke|json|key|look_up"
    r"|message|minimax|mm|name|opensource|param|parameters?|response|seed|self|string|think|thought|to|tool|tool_call"
    r"|tool_call_id|tool_calls|tool_name|tool_sep|tools|true|type|user|word)\b"
)
"""All that may be learnt beside what a message says and special tokens."""
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string", "description": "The word."}}},
    },
}


def conversations() -> Iterator[tuple[str, list[Any], list[Any] | None]]:
    """Kind, messages and tools of each conversation of the file, with the parts of calls that it leaves out."""
    for kind, turns in yaml.safe_load(Path(__file__).with_name("conversations.yaml").read_text()).items():
        num_calls = num_results = 0
        messages = []
        for turn in turns:
            message = {key: value for key, value in turn.items() if key != "calls"}
            for word in turn.get("calls", ()):
                function = {"name": "look_up", "arguments": json.dumps({"word": word})}
                call = {"id": f"call{num_calls:05}", "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
                num_calls += 1
            if turn["role"] == "tool":
                message |= {"tool_call_id": f"call{num_results:05}", "name": "look_up"}
                num_results += 1
            messages.append(message)
        yield kind, messages, [TOOL] if num_calls else None


CONVERSATIONS = list(conversations())


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Source by name; downloaded with pip."""
    folder = tmp_path_factory.mktemp("templates")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "-d", str(folder), PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if result.returncode:
        pytest.skip(f"{PACKAGE} cannot be downloaded: {result.stderr[-300:]}")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as package:
        return {
            Path(member.name).stem: package.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in package.getmembers()
            if re.search(r"models/templates/[^/]+\.jinja$", member.name)
        }


@pytest.fixture(scope="module")
def tokenizers(templates: dict[str, str], byte_level: Callable[..., Any]) -> list[tuple[str, str, Any]]:
    """Name of each template, what turns thinking on or nothing, and a small tokenizer with its tokens."""

    def make(name: str, setting: str) -> Any:
        source = templates[name]
        default = "<|im_end|>" if "<|im_end|>" in source else "<|eot_id|>"
        eos = next((token for part, token in END_TOKENS.items() if part in name), default)
        tokens = {*SPECIAL.findall(source), "<|bos|>"} - {eos}
        markup = {token for token in tokens if MARKUP.fullmatch(token)}
        tokenizer = byte_level(sorted({*tokens - markup, eos}), eos, sorted(markup), bos_token="<|bos|>")
        tokenizer.chat_template = source
        return with_template_defaults(tokenizer, yaml.safe_load(setting) or {})

    settings = {name: ["", *thinking_of(source)] for name, source in sorted(templates.items())}
    return [(name, setting, make(name, setting)) for name in settings for setting in settings[name]]


def thinking_of(source: str) -> list[str]:
    """The first of `THINKING` whose variable the template reads."""
    code = re.sub(r"'[^']*'|\"[^\"]*\"", "", " ".join(re.findall(r"\{[{%].*?[%}]\}", source, re.S)))
    return [each for each in THINKING if re.search(rf"(?<![\w.]){each.split(':')[0]}\b", code)][:1]


def test_every_conversation_is_learnt_exactly_or_refused_by_its_reason(
    tokenizers: list[tuple[str, str, Any]], tmp_path: Path
) -> None:
    measured: dict[tuple[str, str], dict[str, str]] = {}
    for name, setting, tokenizer in tokenizers:
        outcomes = {kind: outcome(tokenizer, messages, tools, f"{name}, {setting}, {kind}")
                    for kind, messages, tools in CONVERSATIONS}  # fmt: skip
        measured[name, setting] = outcomes
    found = tmp_path / KNOWN.name
    reading = {name for name, _, tokenizer in tokenizers if reads_calls(tokenizer)}
    found.write_text("".join(json.dumps(entry) + "\n" for entry in entries_of(measured, reading)))
    usual = {name: outcomes for (name, setting), outcomes in measured.items() if not setting}
    thinking = usual | {name: outcomes for (name, setting), outcomes in measured.items() if setting}
    assert sum(usual[name][kind] != "not taken" for name in usual for kind in FIRST_KINDS) > 380
    errors = {reason for part, reason in REASONS.items() if part not in LABELS}
    assert sum({usual[name][kind], thinking[name][kind]} <= errors for name in usual for kind in FIRST_KINDS) <= 20
    assert KNOWN.read_text() == found.read_text(), f"cp {found} {KNOWN}, and mend the page of models"


def reads_calls(tokenizer: Any) -> bool:
    """Return whether calls are read in the form in which the template writes them."""
    ((_, messages, tools),) = (conversation for conversation in CONVERSATIONS if conversation[0] == "tool")
    try:
        ((ids, start, end), *_) = supervised_runs(render_samples(tokenizer, messages, tools)[0])
    except TemplateError:
        return False
    parsed = parse_completion(tokenizer.decode(ids[start : end - 1]), tools=tools)
    functions = [call["function"] for call in parsed.get("tool_calls", ())]
    return functions == [{"name": "look_up", "arguments": '{"word": "moss"}'}] and parsed["content"] is None


def entries_of(measured: dict[tuple[str, str], dict[str, str]], reading: set[str]) -> Iterator[dict[str, Any]]:
    """The page's entry of each template: the conversations that are not simply learnt, and what thinking changes.

    `reading` are the templates whose calls are read.
    """
    for (name, _), outcomes in ((key, value) for key, value in measured.items() if not key[1]):
        entry: dict[str, Any] = {"template": name}
        entry["conversations"] = {kind: outcome for kind, outcome in outcomes.items() if outcome != "learnt"}
        entry |= {"reads_calls": name in reading} if outcomes["tool"] == "learnt" else {}
        for setting, others in ((key[1], value) for key, value in measured.items() if key[0] == name and key[1]):
            changed = {kind: outcome for kind, outcome in others.items() if outcome != outcomes[kind]}
            entry |= {"thinking": setting, "with_thinking": changed} if changed else {}
        yield entry


def outcome(tokenizer: Any, messages: list[Any], tools: Any, case: str) -> str:
    """`learnt`, `without its reasoning`, why it is refused, or that the template itself takes no such conversation."""
    try:
        render_text(tokenizer, messages, tools, add_generation_prompt=False)
    except TemplateError:
        return "not taken"
    try:
        samples = render_samples(tokenizer, messages, tools)
    except TemplateError as error:
        return reason_of(str(error))
    problem = RoundTrip(tokenizer).problem(messages, tools, render_spans(tokenizer, messages, tools))
    if problem is not None:
        return reason_of(problem)
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    runs = [run for sample in samples for run in supervised_runs(sample)]
    assert len(runs) == len(turns), case
    is_left_out = False
    for index, (ids, start, end) in zip(turns, runs, strict=True):
        prompt = render_text(tokenizer, messages[:index], tools, add_generation_prompt=True)
        assert tokenizer.decode(ids[:start]) == prompt, case
        is_left_out |= check_turn(tokenizer, messages[index], tokenizer.decode(ids[start:end]), case)
    return "without its reasoning" if is_left_out else "learnt"


def reason_of(problem: str) -> str:
    (reason,) = (reason for part, reason in REASONS.items() if part in problem)
    return reason


def check_turn(tokenizer: Any, message: Any, text: str, case: str) -> bool:
    """Check that a learnt turn says each part of the message once, in order, and nothing else.

    Returns whether the reasoning is left out.
    """
    reasoning = message.get("reasoning_content", "")
    calls = [call["function"] for call in message.get("tool_calls", ())]
    words = [json.loads(call["arguments"])["word"] for call in calls]
    parts = [reasoning if reasoning in text else "", (message.get("content") or "").strip(), *words]
    places = [text.find(part) for part in parts if part]
    assert -1 not in places, case
    assert places == sorted(places), case
    for part in filter(None, parts):
        assert text.count(part) == 1, case
        text = text.replace(part, " ")
    assert text.count("look_up") >= len(calls), case
    special = sorted(map(str, tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
    assert text.rstrip().endswith(tuple(special)), case
    for token in special:
        text = text.replace(token, " ")
    assert not MARKUP_WORDS.sub("", text), case
    return reasoning not in parts


def test_every_prompt_is_the_beginning_of_what_is_learnt(tokenizers: list[tuple[str, str, Any]]) -> None:
    for name, setting, tokenizer in tokenizers:
        for kind, messages, tools in CONVERSATIONS:
            try:
                samples = render_samples(tokenizer, messages, tools)
            except TemplateError:
                continue
            first = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
            body = ChatRequest(model="student", messages=messages[:first], tools=tools or [])
            served = render(tokenizer, body.conversation(), body.offered_tools(), add_generation_prompt=True)
            sampled = render(tokenizer, messages[:first], tools or [], add_generation_prompt=True)
            ((ids, start, _), *_) = supervised_runs(samples[0])
            assert ids[:start] == served == sampled, f"{name}, {setting}, {kind}"


def test_defaults_in_a_template_render_as_values_given_with_each_call(
    templates: dict[str, str], tokenizers: list[tuple[str, str, Any]]
) -> None:
    num_compared = 0
    for name, setting, tokenizer in [(name, setting, each) for name, setting, each in tokenizers if setting]:
        for kind, messages, tools in CONVERSATIONS:
            try:
                text = render_text(tokenizer, messages, tools, add_generation_prompt=False)
            except TemplateError:
                continue
            given = {"tools": tools or None, "tokenize": False, **yaml.safe_load(setting)}
            expected = tokenizer.apply_chat_template(
                [template_message(message, is_literal=reads_literal_calls(tokenizer)) for message in messages],
                chat_template=templates[name],
                **given,
            )
            assert text == expected, f"{name}, {setting}, {kind}"
            num_compared += 1
    assert num_compared > 200


def test_the_next_turn_after_sampled_tokens_is_that_of_the_conversation(tokenizers: list[tuple[str, str, Any]]) -> None:
    num_turns = num_refused = 0
    for name, setting, tokenizer in tokenizers:
        for kind, messages, tools in CONVERSATIONS:
            try:
                samples = render_samples(tokenizer, messages, tools)
            except TemplateError:
                continue
            turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
            runs = [run for sample in samples for run in supervised_runs(sample)]
            for number, (ids, start, end) in enumerate(runs[:-1]):
                index, following = turns[number : number + 2]
                replies = messages[index + 1 : following]
                num_turns += 1
                try:
                    added = next_turn_ids(tokenizer, ids[start:end], messages[: index + 1], replies, tools)
                except TemplateError:  # The history leaves out what the turn said, or what precedes it.
                    num_refused += 1
                    continue
                next_ids, next_start, _ = runs[number + 1]
                text, prompt = tokenizer.decode(added), tokenizer.decode(next_ids[:next_start])
                assert prompt.endswith(text), f"{name}, {setting}, {kind}"
                assert all(reply["content"] in text for reply in replies), f"{name}, {setting}, {kind}"
                assert ids[end - 1] in stop_token_ids(tokenizer)
    assert num_turns > 800
    assert num_refused < 40


def supervised_runs(sample: Any) -> list[tuple[list[int], int, int]]:
    """Ids of the sample, and where each stretch of supervised tokens starts and ends."""
    borders = [False, *sample.loss_mask, False]
    changes = [place for place in range(len(borders) - 1) if borders[place] != borders[place + 1]]
    return [(sample.token_ids, start, end) for start, end in zip(changes[::2], changes[1::2], strict=True)]
