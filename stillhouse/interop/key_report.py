"""`conversion.md`: what became of each key of a foreign config, in four lists."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from stillhouse.interop.mapping import MappedKey
from stillhouse.interop.source_record import Unmapped

_SHOWN_CHARACTERS: Final = 80


def key_report(source: str, mapped: Sequence[MappedKey], unmapped: Sequence[Unmapped]) -> str:
    """The page, in Markdown."""
    same = [key for key in mapped if not key.is_default]
    added = [key for key in mapped if key.is_default]
    approximated = [key for key in unmapped if key.is_approximated]
    rest = [key for key in unmapped if not key.is_approximated]
    lines = [
        f"# {source}",
        "",
        *_section("Same", "The config has the same value.", map(_mapped, same)),
        *_section(
            "Same by an added key",
            "The file leaves the key out; its default there is written out.",
            map(_mapped, added),
        ),
        *_section("Approximated", "Something similar happens.", map(_unmapped, approximated)),
        *_section("No counterpart", "Nothing here acts on it.", map(_unmapped, rest)),
    ]
    return "\n".join(lines)


def key_counts(mapped: Sequence[MappedKey], unmapped: Sequence[Unmapped]) -> str:
    """The lengths of the four lists, for a terminal."""
    num_added = sum(key.is_default for key in mapped)
    num_approximated = sum(key.is_approximated for key in unmapped)
    return (
        f"keys: {len(mapped) - num_added} same, {num_added} same by an added key, {num_approximated} approximated, "
        f"{len(unmapped) - num_approximated} without counterpart"
    )


def _section(title: str, meaning: str, entries: Iterable[str]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield meaning
    yield ""
    yield from entries
    yield ""


def _mapped(key: MappedKey) -> str:
    return f"- `{key.key}`: `{key.target}` = {_shown(key.value)}"


def _unmapped(key: Unmapped) -> str:
    return f"- `{key.key}` = {_shown(key.value)}: {key.reason}"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"`{text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + ' ...'}`"
