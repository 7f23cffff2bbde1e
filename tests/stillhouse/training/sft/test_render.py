from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase as Tokenizer

from stillhouse.chat.samples import render_samples
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config.training import SftConfig
from stillhouse.errors import InputError
from stillhouse.prompts.files import SourceRow
from stillhouse.training.sft.render import Chunk, RenderedChunk, Rendering, render_chunk
from stillhouse.training.sft.sources import SplitRow

ALL = Rendering.of(SftConfig(), max_length=512)
END = "<|im_end|>"
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def talk(*texts: str) -> list[dict[str, Any]]:
    """A conversation in turns, the user's first."""
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]


def rendered(
    tokenizer: Tokenizer, *conversations: Any, rendering: Rendering = ALL, share: float = 0.0
) -> RenderedChunk:
    rows = [
        SplitRow("train", SourceRow(f"file, row {number}", {"messages": messages}))
        for number, messages in enumerate(conversations)
    ]
    return render_chunk(tokenizer, Chunk(0, share, rows), rendering)


def learnt(tokenizer: Tokenizer, chunk: RenderedChunk) -> list[str]:
    rows = chunk.batches["train"].to_pylist()
    return [
        tokenizer.decode([token for token, trained in zip(row["token_ids"], row["loss_mask"], strict=True) if trained])
        for row in rows
    ]


def test_samples_are_those_of_the_conversation_up_to_their_last_target(tokenizer: Tokenizer):
    messages: Any = [*talk("q", "a", "r", "b"), {"role": "user", "content": "unanswered"}]
    (row,) = rendered(tokenizer, messages).batches["train"].to_pylist()
    ((ids, mask, _),) = render_samples(tokenizer, messages, None)
    end = len(row["token_ids"])
    assert (row["token_ids"], row["loss_mask"]) == (ids[:end], mask[:end])
    assert row["loss_mask"][-1]
    assert not any(mask[end:])
    assert end < len(ids)


# Earlier answers vanish, as reasoning does in some templates.
FORGETTING = (
    "{% for m in messages %}{% if loop.last or m.role != 'assistant' %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
)


def test_a_row_gives_several_samples_where_the_template_renders_history_another_way():
    tokenizer = load_tokenizer("embedded:student")
    tokenizer.chat_template = FORGETTING
    chunk = rendered(tokenizer, talk("q", "a", "r", "b"), talk("q", "c"))
    assert learnt(tokenizer, chunk) == ["a" + END, "b" + END, "c" + END]
    assert chunk.counts == {
        "rows": 2,
        "rejected": 0,
        "repeated_tokens": len(tokenizer(f"q{END}{END}r{END}")["input_ids"]),
    }


def test_long_rows_are_cut_and_counted_and_may_have_nothing_left(tokenizer: Tokenizer):
    long, longer = talk("q", "a" * 300), talk("q" * 300, "a")
    chunk = rendered(tokenizer, long, longer, talk("q", "b"), rendering=Rendering(60, "truncate", ALL.parts))
    rows = chunk.batches["train"].to_pylist()
    assert [len(row["token_ids"]) == 60 for row in rows] == [True, False]
    assert learnt(tokenizer, chunk)[1] == "b" + END
    assert chunk.counts == {"rows": 3, "rejected": 0, "truncated": 2, "repeated_tokens": 0}


def test_long_rows_are_dropped_whole_where_that_is_asked_for(tokenizer: Tokenizer):
    long = talk("q", "a", "q", "a" * 300)
    chunk = rendered(tokenizer, long, talk("q", "b"), rendering=Rendering(60, "drop", ALL.parts))
    assert learnt(tokenizer, chunk) == ["b" + END]
    assert chunk.counts == {"rows": 2, "rejected": 0, "dropped": 1, "repeated_tokens": 0}


def test_a_row_as_long_as_allowed_is_whole(tokenizer: Tokenizer):
    length = len(rendered(tokenizer, talk("q", "a")).batches["train"].to_pylist()[0]["token_ids"])
    chunk = rendered(tokenizer, talk("q", "a"), rendering=Rendering(length, "drop", ALL.parts))
    assert learnt(tokenizer, chunk) == ["a" + END]


def test_rows_without_what_is_learnt_are_left_out_and_counted(tokenizer: Tokenizer):
    calling: Any = [talk("q")[0], {"role": "assistant", "content": "hm", "tool_calls": [CALL]}]
    calls_alone = Rendering.of(SftConfig(train_on=("tool_calls",)), 512)
    chunk = rendered(tokenizer, talk("q", "a"), calling, rendering=calls_alone)
    (text,) = learnt(tokenizer, chunk)
    assert text.strip() == '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>' + END
    assert chunk.counts["unlearnt"] == 1


def test_a_message_of_weight_zero_is_read_and_not_learnt(tokenizer: Tokenizer):
    messages = talk("q", "a", "r", "b")
    messages[1]["weight"] = 0
    assert learnt(tokenizer, rendered(tokenizer, messages)) == ["b" + END]


def test_a_prompt_is_in_the_same_split_whatever_rows_are_around_it(tokenizer: Tokenizer):
    conversations = [talk(f"q{number % 40}", f"a{number}") for number in range(80)]
    chunk = rendered(tokenizer, *conversations, share=0.4)
    validating = chunk.batches["validation"].column("prompt_id").to_pylist()
    training = chunk.batches["train"].column("prompt_id").to_pylist()
    assert not set(validating) & set(training)
    assert 20 <= len(validating) <= 44
    alone = [rendered(tokenizer, one, share=0.4).batches["validation"].num_rows for one in conversations]
    assert sum(alone) == len(validating)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (talk("q"), r"file, row 1: .*\[user\]"),
        ([{"role": "bot"}], r"file, row 1: .*messages\[0\]\.role"),
        ([talk("q")[0], {**talk("q", "a")[1], "weight": 0}], r"\[user, assistant\].*weight above 0"),
        (talk("q", "a")[1:], "file, row 1: .*message first"),
        ([*talk("q"), {"role": "assistant", "content": "", "tool_calls": [{}]}], r"row 1: .*messages\[1\].tool_calls"),
    ],
)
def test_a_row_that_cannot_be_learnt_from_is_named(tokenizer: Tokenizer, messages: Any, message: str):
    with pytest.raises(InputError, match=message):
        rendered(tokenizer, talk("q", "a"), messages)
