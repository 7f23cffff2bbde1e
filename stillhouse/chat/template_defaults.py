"""Values that a config gives the variables of a chat template, such as `enable_thinking`.

They are written before the template's text, as defaults. So whoever renders with it later, transformers or vLLM,
renders as training did, and what a request gives still goes first.
"""

import json
import re
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stillhouse.chat.refs import resolve_model
from stillhouse.config.section import ChatTemplateKwargs
from stillhouse.config.suggest import nearest
from stillhouse.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CODE: Final = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
_STRING: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_NAME: Final = re.compile(r"(?<![\w.])[^\W\d]\w*")
# transformers drops the line break behind a block. Without one of ours, that would be the template's own.
_DEFAULT: Final = re.compile(
    r"\{% if (?P<name>\w+) is not defined %\}\{% set (?P=name) = (?P<value>[^\n]*) %\}\{% endif %\}\n"
)


def with_template_defaults(
    tokenizer: "PreTrainedTokenizerBase", values: ChatTemplateKwargs
) -> "PreTrainedTokenizerBase":
    """Return the tokenizer with `values` as defaults of its templates' variables, in place of earlier ones.

    Raises ConfigError if no template of the tokenizer reads one of the variables.
    """
    if not values:
        return tokenizer
    templates = tokenizer.chat_template
    named = templates if isinstance(templates, dict) else {"": str(templates)}
    _require_read(values, list(named.values()), tokenizer.name_or_path or "this tokenizer")
    written = {name: _with_defaults(text, values) for name, text in named.items()}
    changed = copy(tokenizer)
    changed.chat_template = written if isinstance(templates, dict) else written[""]
    return changed


def require_variables(ref: str, values: ChatTemplateKwargs) -> None:
    """Raise ConfigError if no template in the folder of a model ref reads one of the variables.

    Of a Hugging Face id nothing is known before it is loaded.
    """
    folder = Path(resolve_model(ref))
    files = [folder / "chat_template.jinja", *sorted(folder.glob("additional_chat_templates/*.jinja"))]
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    settings = folder / "tokenizer_config.json"
    if not texts and settings.is_file():
        written = json.loads(settings.read_bytes()).get("chat_template") or []
        texts = [written] if isinstance(written, str) else [named["template"] for named in written]
    if texts:
        _require_read(values, texts, ref)


def _require_read(values: ChatTemplateKwargs, templates: Sequence[str], owner: str) -> None:
    read = sorted(set().union(*map(names_in, templates)))
    for name in values:
        if name not in read:
            close = nearest(name, read)
            hint = f"did you mean {close!r}?" if close else "leave it out, or name one that it reads"
            raise ConfigError(f"chat_template_kwargs: the chat template of {owner} never reads {name!r}; {hint}")


def names_in(template: str) -> set[str]:
    """Return the words of a template's code outside strings and behind no dot: its variables, and Jinja's own."""
    return set(_NAME.findall(_STRING.sub("", " ".join(_CODE.findall(template)))))


def end_of_defaults(template: str) -> int:
    """Return where the template's own text begins."""
    end = 0
    while default := _DEFAULT.match(template, end):
        end = default.end()
    return end


def _with_defaults(template: str, values: ChatTemplateKwargs) -> str:
    end = end_of_defaults(template)
    written = {default["name"]: default["value"] for default in _DEFAULT.finditer(template, 0, end)}
    # JSON's texts, numbers, true and false are Jinja's, too.
    written |= {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    lines = [
        f"{{% if {name} is not defined %}}{{% set {name} = {value} %}}{{% endif %}}\n"
        for name, value in written.items()
    ]
    return "".join(lines) + template[end:]
