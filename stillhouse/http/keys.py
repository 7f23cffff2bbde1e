"""Keys are taken out of what an endpoint answers, in every usual spelling, before anything keeps or logs it.

Providers repeat the key they were sent: in refusals, in addresses they redirect to, in ids of requests. A key is looked
for by its value: as it is, with any of its characters escaped (JSON, percent, HTML), in base64 at each of the three
alignments, so that `user:KEY` and `Bearer KEY` are found as well, in hexadecimal and in UTF-16.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

MASK: Final = "***"

_SHORTEST_KEY: Final = 8
"""Characters. What is shorter stands for no key, such as the `none` that local servers are sent."""
_MARK: Final = {b"\\": re.compile(rb"\\(?:u00|x|/)"), b"%": re.compile(b"%"), b"&": re.compile(b"&#")}
"""Found in every text with an escaped character of a key, by its first byte, which is found much sooner."""
_ESCAPE: Final = re.compile(
    rb"\\{1,4}(?:u00|x)([0-9a-fA-F]{2})|%(?:25){0,3}([0-9a-fA-F]{2})|&#[xX]0{0,6}([0-9a-fA-F]{2});|&#0{0,6}([0-9]{2,3});"
)


class KeyRedactor:
    def __init__(self, *keys: str | None) -> None:
        known = [key.encode() for key in keys if key is not None and len(key) >= _SHORTEST_KEY]
        spelled = {form for key in known for form in (key, *_base64_forms(key))}
        hexadecimal = {key.hex().encode() for key in known}
        wide = {key.decode().encode(name) for key in known for name in ("utf-16-le", "utf-16-be")}
        self._narrow = tuple(spelled | hexadecimal | {form.upper() for form in hexadecimal})
        self._wide = tuple(wide)
        # The longest first: where one key is the beginning of another, all of it goes.
        patterns = [
            *(b"".join(map(_spellings, form)) for form in sorted(spelled, key=len, reverse=True)),
            *(b"(?i:%b)" % form for form in sorted(hexadecimal)),
            *map(re.escape, sorted(wide)),
        ]
        self._pattern = re.compile(b"|".join(patterns)) if patterns else None

    def body(self, content: bytes) -> bytes:
        if self._pattern is None or not self._may_be_in(content):
            return content
        return self._pattern.sub(MASK.encode(), content)

    def text(self, text: str) -> str:
        return self.body(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return an answer's headers without the keys, and without bytes that are no UTF-8, which no JSON could hold.

        Where something is taken out, names are in lower case.
        """
        values = "\n".join(headers.values())
        if not values.isascii():
            # aiohttp reads headers with `surrogateescape`.
            sent = {name.lower(): value.encode("utf-8", "surrogateescape") for name, value in headers.items()}
            headers = {name: value.decode(errors="replace") for name, value in sent.items()}
        if self._pattern is None or not self._may_be_in(values.encode("utf-8", "surrogatepass")):
            return headers
        return {name.lower(): self.text(value) for name, value in headers.items()}

    def _may_be_in(self, content: bytes) -> bool:
        """Return whether a key may be in it: of most answers simple searches tell much sooner than the pattern."""
        if any(form in content for form in self._narrow):
            return True
        # No text in UTF-8 has a zero byte in it that JSON would let pass.
        if b"\0" in content and any(form in content for form in self._wide):
            return True
        if not any(first in content and mark.search(content) for first, mark in _MARK.items()):
            return False
        plain = _ESCAPE.sub(_unescaped, content).replace(b"\\", b"")
        return any(form.replace(b"\\", b"") in plain for form in self._narrow)


def _unescaped(escape: re.Match[bytes]) -> bytes:
    code = int(escape[4]) if escape[4] else int(escape[1] or escape[2] or escape[3], 16)
    return bytes([code]) if code < 256 else escape[0]


def _base64_forms(key: bytes) -> set[bytes]:
    """Return the characters that are the same wherever `key` stands in what is encoded, in both alphabets."""
    forms = set()
    for offset in range(3):
        encoded = b64encode(bytes(offset) + key)
        # Each character holds 6 bits; those at the borders hold bits of the neighbours, too.
        core = encoded[-(-offset * 8 // 6) : (offset + len(key)) * 8 // 6]
        forms |= {core, core.translate(bytes.maketrans(b"+/", b"-_"))}
    return forms


def _spellings(character: int) -> bytes:
    """Return a pattern of one byte of a key: as it is or escaped, also where the escape was escaped again."""
    code = b"".join(
        b"[%c%c]" % (digit, digit - 32) if digit >= ord("a") else b"%c" % digit for digit in b"%02x" % character
    )
    plain = re.escape(bytes([character]))
    slashed = rb"\\{0,4}" + plain if character in b'/"\\' else plain
    return rb"(?:%b|\\{1,4}(?:u00|x)%b|%%(?:25){0,3}%b|&#(?:[xX]0{0,6}%b|0{0,6}%d);)" % (
        *(slashed, code, code, code),
        character,
    )
