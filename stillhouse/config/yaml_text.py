"""Reads YAML as those who write it mean it: a key stands once, and `1e-5` is a number."""

import re
from typing import Any, Final

import yaml
from yaml.composer import ComposerError

_REMEDY: Final = "Put a text with `: `, `#`, quotes or brackets in quotes, and indent by spaces, never by tabs"


class _Loader(yaml.SafeLoader):
    """A loader that refuses a second value of a key, of which PyYAML would drop the first."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Return the mapping that comes next."""
        node = super().compose_mapping_node(anchor)
        first: dict[str, Any] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (before := first.setdefault(key.value, key)) is not key:
                problem = f"the key `{key.value}`, which has a value in line {before.start_mark.line + 1}, has another"
                raise ComposerError(None, None, problem, key.start_mark, "Keep one of them")
        return node


# A number of YAML 1.2 and of JSON. PyYAML reads 1.1, in which it is text without a point and a signed exponent.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read_yaml(text: str) -> Any:
    """Return the value of a YAML document.

    Raises:
        ValueError: it is not valid; the message has problem, place and remedy in a line, and not the text around it,
            which may contain a key.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(f"{error.problem}{place}. {error.note or _REMEDY}") from None
    except yaml.YAMLError:
        raise ValueError("it has a character that YAML does not allow") from None
