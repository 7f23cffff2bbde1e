import pytest

from stillhouse.chat.thoughts import split_thoughts, without_end_tokens

HARMONY = "<|channel|>analysis<|message|>carry<|end|><|start|>assistant<|channel|>final<|message|>4"


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>71? no, 72</think>\n\n72", "71? no, 72", "72"),
        ("<think>\ncarry\n</think>\n\n4", "carry", "4"),
        ("no opening tag, the template wrote it</think>72", "no opening tag, the template wrote it", "72"),
        ("carry</think><think>again</think>4", "carry\n\nagain", "4"),
        ("<think>a</think> <think>b</think>c", "a\n\nb", "c"),
        ("<think>\n\n</think>\n\n4", "", "4"),
        ("<think>never ends", "never ends", ""),
        ("  <think>72</think>", "72", ""),
        ("[THINK]carry[/THINK]4", "carry", "4"),
        ("<thinking>carry</thinking>4", "carry", "4"),
        ("<thought>carry</thought>4", "carry", "4"),
        ("<seed:think>carry</seed:think>4", "carry", "4"),
        ("<mm:think>carry</mm:think>4", "carry", "4"),
        ("\u25c1think\u25b7carry\u25c1/think\u25b74", "carry", "4"),
        ("<|START_THINKING|>carry<|END_THINKING|>4", "carry", "4"),
        (HARMONY, "carry", "4"),
        (f"{HARMONY}<|return|>", "carry", "4"),
        ("<|channel|>analysis<|message|>carry", "carry", ""),
        ("analysisWe carry.assistantfinal4", "We carry.", "4"),
        # The thinking speaks of its own tag.
        ("<think>`</think>` ends it</think>4", "`</think>` ends it", "4"),
    ],
)
def test_thinking_that_a_text_begins_with_is_split_off(text: str, reasoning: str, answer: str) -> None:
    assert split_thoughts(text)[:2] == (reasoning, answer)


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "",
        "The tag `<think>` opens, `</think>` closes.",
        "Close it with `</think>`.",
        'Qwen ends with "</think>" here.',
        "In Qwen, <think>x</think> is thinking.",
        "<thinking> is a tag",
        "analysis of variance",
        "Harmony writes <|channel|>analysis<|message|>x<|end|>",
        "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
        "<|channel|>commentary<|message|>{}<|end|>",
    ],
)
def test_a_text_that_speaks_of_the_tags_stays_whole(text: str) -> None:
    assert split_thoughts(text) == ("", text, False)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("4<|im_end|>", "4"),
        ("4\n<|eot_id|>\n", "4\n"),
        ("4<|end|><|return|>", "4"),
        ("ChatML ends a turn with <|im_end|>", "ChatML ends a turn with <|im_end|>"),
        ("`<|im_end|>`", "`<|im_end|>`"),
        ("<|im_end|> ends it", "<|im_end|> ends it"),
    ],
)
def test_the_tokens_that_end_a_turn_are_no_text(text: str, rest: str) -> None:
    assert without_end_tokens(text) == rest
