"""Numbers and names that documentation publishes as examples. They are nobody's, so finding one is no finding."""
# ruff: noqa: SIM905  (one item a line would be a hundred lines)

import re
from typing import Final

RESERVED_DOMAIN: Final = re.compile(r"(?:^|\.)(?:example\.(?:com|net|org)|example|test|invalid|localhost)$", re.I)
"""RFC 2606 and 6761."""

FICTIONAL_PHONE: Final = re.compile(r"1\d{3}55501\d{2}|44(?:2079460|7700900)\d{3}")
"""Country code and number: 555-01XX in North America (NANPA), 020 7946 0XXX and 07700 900XXX in Britain (Ofcom)."""

TEST_CARDS: Final = frozenset(
    "378282246310005 371449635398431 378734493671000 30569309025904 36227206271667 38520000023237 3530111333300000"
    " 3566002020360505 4000056655665556 4012888888881881 4111111111111111 4222222222222 4242424242424242"
    " 5105105105105100 5200828282828210 5555555555554444 2223003122003222 6011000990139424 6011111111111117"
    " 6011981111111113 6200000000000005".split()
)
"""Of Stripe and PayPal."""

SAMPLE_IBANS: Final = frozenset(
    "GB29NWBK60161331926819 GB82WEST12345698765432 GB33BUKB20201555555555 DE89370400440532013000 NL91ABNA0417164300"
    " FR1420041010050500013M02606 FR7630006000011234567890189 ES9121000418450200051332 BE68539007547034"
    " CH9300762011623852957 IT60X0542811101000000123456 AT611904300234573201".split()
)
"""Of the SWIFT registry, Wikipedia and banks' guides."""

PUBLIC_RESOLVERS: Final = frozenset(
    "208.67.222.222 208.67.220.220 149.112.112.112 2001:4860:4860::8888 2001:4860:4860::8844"
    " 2606:4700:4700::1111 2606:4700:4700::1001 2620:fe::fe".split()
)
"""Addresses of OpenDNS, Quad9, Google and Cloudflare that anyone may ask for names."""

SAMPLE_IDENTITIES: Final = frozenset({"123-45-6789", "123.456.789-09", "12345678Z", "12345678-Z", "X1234567L"})
"""American, Brazilian and Spanish identity numbers counted up from 1."""

PLACEHOLDER: Final = re.compile(
    r"example|sample|dummy|x{6}|placeholder|your[_-]|12345678|\.eyJzdWIiOiIxMjM0NTY3ODkwI", re.I
)
"""What shows a key to be an invented one; the last is the payload of jwt.io, {"sub":"1234567890", in base64."""
