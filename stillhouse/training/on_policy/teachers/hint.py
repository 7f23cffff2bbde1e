"""Text that one teacher reads before the question: a solution, a demonstration, a rubric.

A student that learns from itself with a hint in its prompt learns to do without the hint (context distillation,
arXiv 2112.00861; on-policy self-distillation, arXiv 2601.18734).
"""

from collections.abc import Sequence
from typing import Final

from jinja2 import StrictUndefined, TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stillhouse.errors import ConfigError, InputError
from stillhouse.types import Message, PromptMetadata

_SEPARATOR: Final = "\n\n"


class Hint:
    """A teacher's hint: Jinja that may use `expected_answer`, `tag` and the keys of the prompt's metadata.

    Raises ConfigError if it cannot be parsed.
    """

    def __init__(self, template: str, teacher: str) -> None:
        self._teacher = teacher
        try:
            self._template = ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(template)
        except TemplateError as error:
            raise ConfigError(f"hint of teacher {teacher!r} is no Jinja template: {error}; saw {template!r}") from error

    def text(self, prompt_id: str, metadata: PromptMetadata | None) -> str:
        """Return the hint for a prompt, with the separator from the question; empty where nothing is left of it.

        Raises ConfigError if Jinja's sandbox refuses the template, InputError if the prompt lacks a variable of it.
        """
        variables = {}
        if metadata is not None:
            variables = {**metadata.metadata, "expected_answer": metadata.expected_answer, "tag": metadata.tag}
        variables = {name: value for name, value in variables.items() if value is not None}
        try:
            text = self._template.render(variables)
        except SecurityError as error:
            raise ConfigError(
                f"hint of teacher {self._teacher!r} is refused by Jinja's sandbox: {error}. A hint may use the "
                f"prompt's {sorted(variables)} and Jinja's filters, and nothing of Python behind them"
            ) from error
        except Exception as error:  # a user's template may raise anything
            raise InputError(
                f"hint of teacher {self._teacher!r}: prompt {prompt_id} does not have what it asks for: "
                f"{type(error).__name__}: {error}; the prompt has {sorted(variables)}. Give every prompt what the hint "
                "needs, or ask for it with `{% if NAME is defined %}`"
            ) from error
        # Line breaks before the question alone are another prompt than the student's.
        return text + _SEPARATOR if text.strip() else ""

    def insert(self, messages: Sequence[Message], prompt_id: str, metadata: PromptMetadata | None) -> list[Message]:
        """Return the prompt's messages with the hint before the last user message's content.

        Raises:
            InputError: there is no user message, or as `text`.
        """
        for place in range(len(messages) - 1, -1, -1):
            message = messages[place]
            if message["role"] == "user":
                content = self.text(prompt_id, metadata) + (message.get("content") or "")
                return [*messages[:place], {**message, "content": content}, *messages[place + 1 :]]
        raise InputError(f"hint of teacher {self._teacher!r}: prompt {prompt_id} has no user message to insert it into")
