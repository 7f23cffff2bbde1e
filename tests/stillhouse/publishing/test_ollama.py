import pytest

from stillhouse.chat.template import render_text
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.errors import TrainingError
from stillhouse.publishing.ollama import modelfile, pieces_of
from stillhouse.types import Message

_TURNS: list[Message] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b\n"},
    {"role": "user", "content": "c"},
]


def _tokenizer(template: str):
    tokenizer = load_tokenizer("embedded:student")
    tokenizer.chat_template = template
    return tokenizer


def test_the_pieces_of_a_template_render_what_the_template_does() -> None:
    tokenizer = load_tokenizer("embedded:student")
    system: Message = {"role": "system", "content": "Be brief."}
    for messages in (_TURNS[:1], _TURNS, [system, *_TURNS]):
        assert pieces_of(tokenizer).text(messages) == render_text(tokenizer, messages, None, True)


def test_a_system_message_of_the_templates_own_is_kept_and_braces_are_no_actions() -> None:
    template = (
        "{% if messages[0].role != 'system' %}<s>Be {{ '{{' }}kind}}.{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    text = modelfile(_tokenizer(template), "a.gguf", ["</s>"], adds_bos=False, max_length=64)
    assert '{{ if ne (index .Messages 0).Role "system" }}<s>Be {{ "{{" }}kind}}.{{ end }}{{ range .Messages }}' in text
    assert text.startswith("FROM ./a.gguf\n")
    assert "PARAMETER num_ctx 64\n" in text
    assert 'PARAMETER stop "</s>"\n' in text


def test_a_template_that_renders_a_message_by_its_place_is_refused() -> None:
    template = "{% for m in messages %}{{ loop.length if loop.last }}[{{ m.role }}]{{ m.content }}{% endfor %}"
    with pytest.raises(TrainingError, match="cannot be written in Ollama's language"):
        pieces_of(_tokenizer(template))
