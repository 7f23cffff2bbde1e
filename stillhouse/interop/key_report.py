"""`conversion.md`: what became of each key of a foreign config, in four lists."""

from collections.abc import Sequence
from typing import Any, Final

from stillhouse.interop.mapping import MappedKey
from stillhouse.interop.source_record import Unmapped

_SHOWN_CHARACTERS: Final = 80


def key_report(source: str, mapped: Sequence[MappedKey], unmapped: Sequence[Unmapped]) -> tuple[str, str]:
    """Return the page, in Markdown, and the lengths of its lists, for a terminal."""
    same = [_mapped(key) for key in mapped if not key.is_default]
    added = [_mapped(key) for key in mapped if key.is_default]
    approximated = [_unmapped(key) for key in unmapped if key.is_approximated]
    rest = [_unmapped(key) for key in unmapped if not key.is_approximated]
    lines = [f"# {source}", ""]
    for title, meaning, entries in (
        ("Same", "The config has the same value.", same),
        ("Same by an added key", "The file leaves the key out; its default there is written out.", added),
        ("Approximated", "Something similar happens.", approximated),
        ("No counterpart", "Nothing here acts on it.", rest),
    ):
        lines += [f"## {title}", "", meaning, "", *entries, ""]
    counts = (
        f"keys: {len(same)} same, {len(added)} same by an added key, {len(approximated)} approximated, "
        f"{len(rest)} without counterpart"
    )
    return "\n".join(lines), counts


def _mapped(key: MappedKey) -> str:
    return f"- `{key.key}`: `{key.target}` = {_shown(key.value)}"


def _unmapped(key: Unmapped) -> str:
    return f"- `{key.key}` = {_shown(key.value)}: {key.reason}"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"`{text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + ' ...'}`"
