import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.http.keys import KeyRedactor

KEY = "sk-canary/0123+456789?~abcDEF"
WHOLE = KEY.encode()


def _escaped(form: str) -> str:
    return "".join(form.format(ord(character)) for character in KEY)


SPELLINGS: dict[str, bytes] = {
    "plain": WHOLE,
    "Bearer": b"Bearer " + WHOLE,
    "JSON": json.dumps(KEY).encode(),
    "JSON of PHP, which escapes slashes": KEY.replace("/", "\\/").encode(),
    "every character as \\u": _escaped("\\u{:04x}").encode(),
    "every character as \\u in capitals": _escaped("\\u{:04X}").encode(),
    "one character as \\u": KEY.replace("n", "\\u006e").encode(),
    "JSON in JSON": _escaped("\\\\u{:04x}").encode(),
    "bytes of Python": _escaped("\\x{:02x}").encode(),
    "percent": quote(KEY, safe="").encode(),
    "percent in small letters": quote(KEY, safe="").lower().replace("def", "DEF").encode(),
    "every character by percent": _escaped("%{:02x}").encode(),
    "percent twice": quote(quote(KEY, safe=""), safe="").encode(),
    "HTML": _escaped("&#{:d};").encode(),
    "HTML in hexadecimal": _escaped("&#x{:x};").encode(),
    **{f"base64 behind {n}": b64encode(b"u" * n + WHOLE + b"zz") for n in range(4)},
    **{f"base64 for addresses behind {n}": urlsafe_b64encode(b"u" * n + WHOLE) for n in range(4)},
    "base64 without padding": b64encode(WHOLE).rstrip(b"="),
    "base64 of a login": b64encode(b"user:" + WHOLE),
    "base64 in an address": quote(b64encode(WHOLE), safe="").encode(),
    "base64 of PHP": b64encode(WHOLE).replace(b"/", b"\\/"),
    "hexadecimal": WHOLE.hex().encode(),
    "hexadecimal in capitals": WHOLE.hex().upper().encode(),
    "UTF-16": KEY.encode("utf-16-le"),
    "UTF-16 of a network": KEY.encode("utf-16-be"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_key_is_taken_out_in_every_usual_spelling(spelling: str) -> None:
    around = [b'{"error": "no ', b' may ask"}']
    redacted = KeyRedactor(KEY).body(SPELLINGS[spelling].join(around))
    assert redacted.startswith(around[0])
    assert redacted.endswith(around[1])
    # Of base64, characters at the borders stay, which hold a few bits of the first or the last character alone.
    assert b"***" in redacted
    assert len(redacted) <= len(around[0]) + len(around[1]) + 3 + 12


SPELL: list[Callable[[str], str]] = [
    str,
    lambda character: f"\\u{ord(character):04x}",
    lambda character: f"\\\\u{ord(character):04X}",
    lambda character: f"\\x{ord(character):02x}",
    lambda character: f"%{ord(character):02X}",
    lambda character: f"%25{ord(character):02x}",
    lambda character: f"&#{ord(character)};",
]


@given(
    key=st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789-_./+=~", min_size=8, max_size=60),
    draw=st.data(),
)
def test_characters_may_each_be_spelled_in_another_way(key: str, draw: st.DataObject) -> None:
    spelled = "".join(draw.draw(st.sampled_from(SPELL))(character) for character in key)
    before, after = draw.draw(st.text(max_size=20)), draw.draw(st.text(max_size=20))
    redacted = KeyRedactor(key).text(f"{before} {spelled} {after}")
    assert redacted == KeyRedactor(key).text(before + " ") + "***" + KeyRedactor(key).text(" " + after)


@given(st.binary(max_size=300))
def test_what_holds_no_key_stays_as_it_is(content: bytes) -> None:
    assert KeyRedactor(KEY).body(content) == content


@pytest.mark.parametrize("key", [None, "", "none", "EMPTY", "sk-1234"])
def test_what_is_too_short_for_a_key_is_left_alone(key: str | None) -> None:
    assert KeyRedactor(key).text("none is EMPTY, sk-1234") == "none is EMPTY, sk-1234"


def test_headers_are_searched_as_bodies_are() -> None:
    headers = {"Location": f"https://a.example/?key={quote(KEY, safe='')}", "X-Request-Id": "1"}
    assert KeyRedactor(KEY).headers(headers) == {"location": "https://a.example/?key=***", "x-request-id": "1"}
    assert KeyRedactor("another-key").headers(headers) is headers


@pytest.mark.parametrize("key", [None, "sk-0123456789"])
def test_bytes_of_headers_that_are_no_utf_8_are_replaced(key: str | None) -> None:
    headers = {"X-Request-Id": "\udcff1", "X-Name": "\udcc3\udca9", "X-Plain": "a"}
    assert KeyRedactor(key).headers(headers) == {"x-request-id": "\ufffd1", "x-name": "é", "x-plain": "a"}


def test_of_a_key_that_begins_another_neither_is_left() -> None:
    assert KeyRedactor("sk-canary", "sk-canary-and-more").text("it is sk-canary-and-more") == "it is ***"


@pytest.mark.parametrize("unit", ["\\", "%25", "\\u0073", "&#", "&#0", "sk-canary/", "%2"])
def test_hostile_bodies_take_time_in_proportion(unit: str) -> None:
    # A pattern that backtracks would take hours for these.
    body = (unit * 500_000).encode()
    assert KeyRedactor(KEY).body(body) == body
