import resource
from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.chat.rendering import Prefixes, render_prefixes
from stillhouse.errors import ConfigError

MESSAGES = [
    {"role": "user", "content": "a" * 1000},
    {"role": "assistant", "content": "I think.", "reasoning_content": "Hm.", "reasoning": "Hm."},
    {"role": "user", "content": "And \U0001f600?"},
]
PREFIXES = [(1, True), (2, False), (3, True), (3, False)]
TOOLS: list[Any] = [CALCULATOR_SCHEMA]

ENDLESS = {
    "nested loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "loops over a text": "{% set t = messages[0].content %}"
    "{% for a in t %}{% for b in t %}{% for c in t %}{% endfor %}{% endfor %}{% endfor %}",
    "a large power": "{{ (7 ** (10 ** 9)) % 3 }}",
    "macros that branch": "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(90) }}",
}
HUGE = {
    "a product": "{{ 'a' * 10**10 }}",
    "a width": "{{ 'a'|center(10**10) }}",
    "a format": "{{ '%010000000000d' % 1 }}",
    "a list": "{{ ([0] * 10**10)|length }}",
    "doubling": "{% set n = namespace(x='aaaaaaaa') %}"
    "{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x|length }}",
    "doubling by replacing": "{% set n = namespace(x='a' * 1000) %}"
    "{% for i in range(9) %}{% set n.x = n.x|replace('a', n.x) %}{% endfor %}{{ n.x|length }}",
    "a long text": "{% for i in range(100000) %}{{ messages[0].content }}{% endfor %}",
    "recursion": "{% macro a(n) %}{{ a(n + 1) }}{% endmacro %}{{ a(0) }}",
}


@pytest.fixture
def render(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The texts of a template: `render("{{ messages }}")`."""
    list(render_prefixes(tokenizer, [Prefixes(MESSAGES, None, PREFIXES)]))

    def rendered(template: str, max_s: float = 5.0) -> list[str]:
        monkeypatch.setattr(tokenizer, "chat_template", template)
        (texts,) = render_prefixes(tokenizer, [Prefixes(MESSAGES, None, [(3, False)])], max_s)
        assert texts.refusal is None
        return texts.texts

    return rendered


@pytest.mark.parametrize("name", ["qwen3", "llama3", "gemma", "mistral"])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_texts_are_those_of_transformers(
    family: Callable[[str], PreTrainedTokenizerBase], name: str, tools: list[Any] | None
) -> None:
    tokenizer: Any = family(name)
    (rendered,) = render_prefixes(tokenizer, [Prefixes(MESSAGES, tools, PREFIXES)])
    expected = [
        tokenizer.apply_chat_template(MESSAGES[:end], tools=tools, add_generation_prompt=prompt, tokenize=False)
        for end, prompt in PREFIXES
    ]
    assert rendered == (expected, None)


def test_many_conversations_come_back_in_their_order_with_every_character(tokenizer: PreTrainedTokenizerBase) -> None:
    odd = "\x00 \ud800 \u2028 \U0001f600 \\u0041"
    contents = [f"number {n} {odd}" for n in range(100)]
    conversations = [Prefixes([{"role": "user", "content": content}], None, [(1, True)]) for content in contents]
    for content, rendered in zip(contents, render_prefixes(tokenizer, conversations), strict=True):
        assert content in rendered.texts[0]


def test_what_a_template_refuses_comes_after_what_it_rendered(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{% if messages|length > 2 %}{{ raise_exception('too many') }}{% endif %}{{ messages|length }}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    (rendered,) = render_prefixes(tokenizer, [Prefixes(MESSAGES, None, PREFIXES)])
    assert rendered == (["1", "2"], "too many")


@pytest.mark.parametrize(
    "name", [name if number == 0 else pytest.param(name, marks=pytest.mark.slow) for number, name in enumerate(ENDLESS)]
)
def test_a_template_without_end_is_stopped(render: Callable[..., list[str]], name: str) -> None:
    with pytest.raises(ConfigError, match=r"0\.6 s"):
        render(ENDLESS[name], max_s=0.5)
    assert render("{{ messages|length }}") == ["3"]


@pytest.mark.parametrize("name", HUGE)
def test_a_template_that_grows_without_end_is_stopped(render: Callable[..., list[str]], name: str) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # On a busy machine time may run out before memory does.
    reasons = r"characters|MiB of memory|macros that call each other|more than [\d.]+ s"
    with pytest.raises(ConfigError, match=reasons) as caught:
        render(HUGE[name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 300_000
    assert "chat_template.jinja" in str(caught.value)


def test_the_sandbox_stands(render: Callable[..., list[str]]) -> None:
    assert render("{{ ''.__class__ }}") == [""]
    with pytest.raises(AssertionError, match="unsafe"):
        render("{{ ''.__class__.__mro__ }}")
