"""Ollama's Modelfile beside a GGUF file: how conversations are rendered, where answers end, how they are sampled.

Ollama renders by TEMPLATE, in the language of Go's text/template, and conversations with tools by the template in the
GGUF file where TEMPLATE knows none (`shouldPreferChatTemplate` in its server/images.go).
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.template import render_text
from stillhouse.errors import TrainingError
from stillhouse.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MODELFILE: Final = "Modelfile"
_CONTENT: Final = "\ue0a1content\ue0a2"
"""A text that no template holds."""
_SAMPLING: Final = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repeat_penalty": 1}
"""The student's own distribution, in which it was trained and measured."""


class Pieces(NamedTuple):
    """A chat template as texts around the contents of messages."""

    default: str
    """Before the first message, unless that is the system's."""
    around: dict[str, tuple[str, str]]
    """By role, what stands before and after the content."""
    prompt: str
    """What asks for the next answer."""

    def text(self, messages: Sequence[Message]) -> str:
        """Return the prompt of a conversation."""
        parts = ["" if messages[0]["role"] == "system" else self.default]
        for message in messages:
            before, after = self.around[message["role"]]
            parts += [before, cast(str, message["content"]), after]
        return "".join(parts) + self.prompt

    def template(self) -> str:
        """Return the same in Go's language."""
        roles = [
            f'{{{{ {word} eq .Role "{role}" }}}}{_literal(before)}{{{{ .Content }}}}{_literal(after)}'
            for word, (role, (before, after)) in zip(("if", "else if", "else if"), self.around.items(), strict=True)
        ]
        first = f'{{{{ if ne (index .Messages 0).Role "system" }}}}{_literal(self.default)}{{{{ end }}}}'
        return f"{first}{{{{ range .Messages }}}}{''.join(roles)}{{{{ end }}}}{{{{ end }}}}{_literal(self.prompt)}"


def pieces_of(tokenizer: "PreTrainedTokenizerBase") -> Pieces:
    """Return the pieces of a chat template; raise TrainingError if it is not made of such."""
    roles = ("system", "user", "assistant")
    messages: list[Any] = [{"role": role, "content": _CONTENT} for role in roles]
    try:
        ends = ["", *(render_text(tokenizer, messages[: n + 1], None, False) for n in range(3))]
        around: dict[str, tuple[str, str]] = {}
        for role, start, whole in zip(roles, ends, ends[1:], strict=False):
            before, _, after = whole.removeprefix(start).partition(_CONTENT)
            around[role] = before, after
        prompt = render_text(tokenizer, messages[:2], None, True).removeprefix(ends[2])
        alone = render_text(tokenizer, messages[1:2], None, False)
        pieces = Pieces(alone.removesuffix(_CONTENT.join(around["user"])), around, prompt)
        probes = [messages[1:2], messages[:2], [*messages[1:], messages[1]], [*messages, messages[1]]]
        if all(pieces.text(probe) == render_text(tokenizer, probe, None, True) for probe in probes):
            return pieces
        problem = "it renders a message by those around it"
    except TemplateError as error:
        problem = str(error)
    raise TrainingError(
        f"the chat template cannot be written in Ollama's language: {problem}. Write the student with --to gguf, and "
        "serve it by llama-server --jinja"
    )


def modelfile(
    tokenizer: "PreTrainedTokenizerBase", gguf: str, ends: Iterable[str], *, adds_bos: bool, max_length: int
) -> str:
    """Return the Modelfile of a GGUF file beside it; raises as `pieces_of`.

    With `adds_bos` the runtime writes the first token itself. `max_length` is in tokens.
    """
    pieces = pieces_of(tokenizer)
    if adds_bos:
        system, after = pieces.around["system"]
        bos = str(tokenizer.bos_token)
        around = pieces.around | {"system": (system.removeprefix(bos), after)}
        pieces = pieces._replace(default=pieces.default.removeprefix(bos), around=around)
    settings = [*_SAMPLING.items(), ("num_ctx", max_length), *(("stop", f'"{end}"') for end in ends)]
    lines = [f"PARAMETER {name} {value}" for name, value in settings]
    return "\n".join([f"FROM ./{gguf}", f'TEMPLATE """{pieces.template()}"""', *lines, ""])


def _literal(text: str) -> str:
    if '"""' in text:
        raise TrainingError(f"the chat template writes three quotes, which no Modelfile can hold: {text!r:.80}")
    return text.replace("{{", '{{ "{{" }}')
