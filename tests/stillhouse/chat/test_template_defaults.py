import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from stillhouse.chat.samples import render_samples
from stillhouse.chat.template import render_text
from stillhouse.chat.template_defaults import end_of_defaults, require_variables, with_template_defaults
from stillhouse.errors import ConfigError

THINKING = (
    "\n{%- macro end(shown) %}{% if shown and enable_thinking is false %}<think></think>{% endif %}{% endmacro %}\n"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% if style %} {{ style }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ end(true) }}{% endif %}"
)
USER = {"role": "user", "content": "Moss?"}
Speaks = Callable[[str], PreTrainedTokenizerBase]


def prompt(tokenizer: Any, **values: Any) -> str:
    """As transformers renders it, which whoever serves the student does."""
    return str(tokenizer.apply_chat_template([USER], add_generation_prompt=True, tokenize=False, **values))


@pytest.fixture
def thinking(speaking: Speaks) -> PreTrainedTokenizerBase:
    return speaking(THINKING)


@pytest.mark.parametrize(
    "values",
    [
        {"enable_thinking": False},
        {"enable_thinking": True, "style": "plain"},
        {"style": 'a "quoted"\n\\ line, 100 %} {{ x }} 🌿'},
        {"style": -0.5, "enable_thinking": False},
        {"style": 7},
    ],
)
def test_a_default_renders_as_the_same_value_given_with_each_call(
    thinking: PreTrainedTokenizerBase, values: dict[str, Any]
) -> None:
    changed = with_template_defaults(thinking, values)
    assert prompt(changed) == prompt(thinking, **values)
    assert render_text(changed, [USER], None, add_generation_prompt=True) == prompt(changed)


def test_without_values_the_tokenizer_is_the_same_and_keeps_its_own_with_them(thinking: Any) -> None:
    assert with_template_defaults(thinking, {}) is thinking
    with_template_defaults(thinking, {"enable_thinking": False})
    assert thinking.chat_template == THINKING


def test_what_a_call_gives_goes_before_the_default(thinking: PreTrainedTokenizerBase) -> None:
    changed = with_template_defaults(thinking, {"enable_thinking": False})
    assert prompt(changed, enable_thinking=True) == prompt(thinking)


def test_a_value_takes_the_place_of_an_earlier_one_and_leaves_the_others(thinking: PreTrainedTokenizerBase) -> None:
    first = with_template_defaults(thinking, {"enable_thinking": False, "style": "plain"})
    second = with_template_defaults(first, {"enable_thinking": True})
    assert prompt(second) == prompt(thinking, enable_thinking=True, style="plain")
    template = str(second.chat_template)
    assert template.count("enable_thinking is not defined") == 1
    assert template[end_of_defaults(template) :] == THINKING
    assert str(with_template_defaults(second, {"enable_thinking": True}).chat_template) == template


def test_the_saved_tokenizer_renders_so_by_itself(thinking: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    changed = with_template_defaults(thinking, {"enable_thinking": False})
    changed.save_pretrained(tmp_path)
    assert prompt(AutoTokenizer.from_pretrained(tmp_path)) == prompt(changed)


def test_every_named_template_of_a_tokenizer_gets_the_defaults(thinking: PreTrainedTokenizerBase) -> None:
    named = with_template_defaults(thinking, {})
    named.chat_template = {"default": THINKING, "tool_use": THINKING.replace("<|end|>", "<|stop|>")}  # type: ignore[assignment]
    changed = with_template_defaults(named, {"enable_thinking": False})
    for template in ("default", "tool_use"):
        assert prompt(changed, chat_template=template).endswith("<think></think>")


def test_what_is_learnt_follows_the_prompt_that_the_default_makes(speaking: Speaks) -> None:
    tokenizer = speaking(THINKING.replace("<|end|>", "<|im_end|>"))
    changed = with_template_defaults(tokenizer, {"enable_thinking": False})
    (sample,) = render_samples(changed, [USER, {"role": "assistant", "content": "A plant."}], None)
    context = changed.decode([token for token, learnt in zip(*sample[:2], strict=True) if not learnt])
    assert context.startswith(prompt(changed).removesuffix("\n"))


@pytest.mark.parametrize(
    ("name", "hint"),
    [("enable_thinkin", "did you mean 'enable_thinking'?"), ("thoughts_per_minute", "leave it out"), ("role", "leave")],
)
def test_a_variable_that_the_template_never_reads_is_refused(thinking: Any, name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'") as raised:
        with_template_defaults(thinking, {name: True})
    assert hint in str(raised.value)


@pytest.mark.parametrize("form", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_folder_is_checked_before_anything_is_loaded(tmp_path: Path, form: str) -> None:
    text = THINKING if form.endswith("jinja") else json.dumps({"chat_template": THINKING})
    (tmp_path / form).write_text(text)
    require_variables(str(tmp_path), {"enable_thinking": True, "style": "plain"})
    with pytest.raises(ConfigError, match=r"'thinking'.* 'enable_thinking'"):
        require_variables(str(tmp_path), {"thinking": True})
    require_variables("somebody/model-on-the-hub", {"thinking": True})
