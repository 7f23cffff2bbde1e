import random
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.dataset.labelling.privacy import privacy_labels, private_data

_DRAW = random.Random(7)


def drawn(length: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    # Tokens are drawn, so that no scanner of repositories takes this file for a leak.
    return "".join(_DRAW.choices(alphabet, k=length))


PRIVATE = (
    ("email", "Write to anna.smith@gmail.com."),
    ("email", "mailto:Anna+list@mail.uni-bonn.de?item=x"),
    ("phone", "Call +49 151 12345678 now"),
    ("phone", "Call (415) 867-5309."),
    ("phone", "tel 415-867-5309"),
    ("phone", "+1 415.867.5309"),
    ("card", "4539 1488 0343 6467"),
    ("card", "Pay with 4539-1488-0343-6467, please."),
    ("card", "my card is 4539148803436467"),
    ("card", "3782 822463 10013"),
    ("iban", "DE75 5121 0800 1245 1261 99 and more"),
    ("iban", "IBAN:GB94BARC10201530093459"),
    ("ip", "from 151.101.65.140 today"),
    ("ip", "http://151.101.65.140/x"),
    ("ip", "ping 2a00:1450:4001:81b::200e"),
    ("id", "SSN 536-90-4399"),
    ("id", "CPF 390.533.447-05"),
    ("id", "RSSMRA85T10A562S"),
    ("id", "DNI 54362315K"),
    ("id", "X-2482300W"),
    ("id", "BOXW310820HNERXN09"),
    ("id", "360426199101010071"),
    ("secret", "AKIA" + drawn(16, string.ascii_uppercase + string.digits)),
    ("secret", f"aws_secret_access_key = '{drawn(40)}'"),
    ("secret", "token ghp_" + drawn(36)),
    ("secret", "github_pat_" + drawn(82)),
    ("secret", "glpat-" + drawn(20)),
    ("secret", f"xoxb-{drawn(12, string.digits)}-{drawn(13, string.digits)}-{drawn(24)}"),
    ("secret", f"sk-{drawn(20)}T3BlbkFJ{drawn(20)}"),
    ("secret", "sk-ant-api03-" + drawn(95)),
    ("secret", "sk-ant-oat01-" + drawn(95)),
    ("secret", "sk-or-v1-" + drawn(64, "0123456789abcdef")),
    ("secret", "sbp_" + drawn(40, "0123456789abcdef")),
    ("secret", "whsec_" + drawn(32)),
    ("secret", "hf_" + drawn(34, string.ascii_letters)),
    ("secret", "AIza" + drawn(35)),
    ("secret", "npm_" + drawn(36)),
    ("secret", "sk_live_" + drawn(24)),
    ("secret", f"SG.{drawn(22)}.{drawn(43)}"),
    ("secret", "Bearer eyJhbGciOiJIUzI1NiJ9.eyJ1c2VyIjoiYW5uYSIsInJvbGUiOiJhZG1pbiJ9." + drawn(43)),
    ("secret", f"-----BEGIN RSA PRIVATE KEY-----\n{drawn(64)}\n"),
    ("secret", f'{{"key": "-----BEGIN PRIVATE KEY-----\\n{drawn(64)}\\n"}}'),
)
PUBLIC = (
    "Write to anna@example.com or ben@mail.example.",
    "icon@2x.png",
    "git clone git@github.com:a/b.git",
    "From: noreply@github.com",
    "x @ y.z is a matrix product",
    "user@localhost",
    "pip install a@1.2.3",
    "Call +1 202-555-0123 or (415) 555-0199.",
    "In London, +44 20 7946 0958",
    "555-867-5309 is no area of ours",
    "2 + 12345678901 = 12345678903",
    "the hotline 800-555-1212",
    "2024-01-15 10:30:00",
    "1234567890",
    "doi 10.1145/3292500.3330701",
    "f(415) = 867.5309",
    "The total is 415 867 5309 units",
    "4242 4242 4242 4242",
    "4539148803436467 is a whole number",
    "4539 1488 0343 6468",
    "1 4539 1488 0343 6467 22",
    "3.141592653589793238",
    "GB82 WEST 1234 5698 7654 32",
    "GB94 BARC 1020 1530 0934 58",
    "AB12 CDEF",
    "see section 3.1.2.4 of version 1.2.3.4",
    "Chrome/122.0.0.0",
    "v151.101.65.140",
    "192.168.1.100 and 10.0.0.255",
    "mask 255.255.255.0",
    "52.0.0.0/8",
    "203.0.113.7",
    "2001:db8::1",
    "at 12:30:45",
    "std::vector<a::b>",
    "123-45-6789",
    "000-12-3456 and 900-12-3456",
    "123.456.789-09",
    "12345678Z",
    "54362315A",
    "20240115T103000",
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "ghp_" + "x" * 36,
    "sk-your-key-here",
    "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIiwiaWF0IjoxNTE2MjM5MDIyfQ.x",
    "api_key = os.environ['API_KEY']",
    "password: hunter2",
    "sha256 " + drawn(64, "0123456789abcdef"),
    "550e8400-e29b-41d4-a716-446655440000",
    "postgres://user:password@localhost/db",
)


@pytest.mark.parametrize(("kind", "text"), PRIVATE)
def test_private_data_is_found_by_its_kind(kind: str, text: str) -> None:
    assert private_data(text) == [kind]
    assert private_data(f"Anna has 2 apples.\n{text}\nShe buys 3 more.") == [kind]


@pytest.mark.parametrize("text", PUBLIC)
def test_what_looks_private_and_is_not_is_left(text: str) -> None:
    assert private_data(text) == []


def test_answers_calls_and_tool_results_are_looked_at_and_prompts_are_not(label_of: Callable[..., Any]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "calculator", "arguments": '{"to": "a@gmail.com"}'}}
    messages = [
        {"role": "user", "content": "My card is 4539 1488 0343 6467."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "(415) 867-5309"},
        {"role": "assistant", "reasoning": "It is 151.101.65.140.", "content": "Call them."},
    ]
    assert label_of(privacy_labels, "private_data", None, messages=messages) == ["email", "ip", "phone"]
    assert label_of(privacy_labels, "private_data", "The answer is 5.") == []


@given(st.permutations(range(8)))
def test_the_order_of_what_is_private_changes_no_label(order: list[int]) -> None:
    parts = [text for _, text in PRIVATE[::5]]
    assert private_data("\n".join(parts[place] for place in order)) == sorted({kind for kind, _ in PRIVATE[::5]})
