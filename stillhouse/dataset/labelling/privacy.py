"""The label `private_data`: personal data, and keys and tokens in the form their issuers gave them.

Precision before recall: a pattern proposes personal data and the library that knows the numbers decides; values that
documentation publishes as examples are not reported. The patterns look back only after their first character: patterns
that begin with a character set are searched several times as fast.

The secret detectors are those of detect-secrets whose patterns are an issuer's own; its detectors by entropy or by
variable name are left out, since code and mathematics are full of what they report. A detector runs only on a text
that holds one of its marks, and nothing is verified over the network.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
from detect_secrets.plugins.github_token import GitHubTokenDetector
from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
from detect_secrets.plugins.jwt import JwtTokenDetector
from detect_secrets.plugins.openai import OpenAIDetector
from detect_secrets.plugins.pypi_token import PypiTokenDetector
from detect_secrets.plugins.sendgrid import SendGridDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.stripe import StripeDetector
from phonenumbers import Leniency, PhoneNumberMatcher, PhoneNumberType, number_type
from stdnum import iban, luhn
from stdnum.br import cpf
from stdnum.cn import ric
from stdnum.es import dni, nie
from stdnum.fr import nir
from stdnum.it import codicefiscale
from stdnum.kr import rrn
from stdnum.mx import curp
from stdnum.us import ssn

from stillhouse.dataset.label_input import LabelInput

# ruff: noqa: SIM905  (one item a line would be a hundred lines)

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
"""Of OpenDNS, Quad9, Google and Cloudflare."""
SAMPLE_IDENTITIES: Final = frozenset({"123-45-6789", "123.456.789-09", "12345678Z", "12345678-Z", "X1234567L"})
"""American, Brazilian and Spanish identity numbers counted up from 1."""


# Common to phone, card, ip and id, except identity numbers that are mostly letters.
_DIGITS: Final = re.compile(r"\d(?:[ .()/-]{0,2}\d){5}")

_EMAIL: Final = re.compile(
    r"(?<![\w.%+-])(?P<user>[A-Za-z0-9._%+-]{1,64})@(?P<domain>(?:[A-Za-z0-9-]{1,63}\.){1,8}(?P<top>[A-Za-z]{2,24}))\b"
)
# `git@host` is a remote, `icon@2x.png` a file.
_NOBODY: Final = frozenset({"git", "noreply", "no-reply", "donotreply", "do-not-reply"})
_FILE_ENDING: Final = re.compile(r"css|gif|html?|ico|jpe?g|[jt]sx?|json|md|pdf|php|png|py|svg|txt|webp|xml|ya?ml", re.I)

_PHONES: Final = (
    re.compile(r"\+(?<![\w)\].+-].)[1-9][\d ().\-/]{6,20}\d(?![\w-])"),
    # North American; three groups with blanks alone are as often just numbers.
    re.compile(r"[(2-9](?<![\w.+].)(?:(?<=\()[2-9]\d\d\) ?|\d\d[.-])[2-9]\d\d[ .-]\d{4}(?![\w-])"),
)
_PERSONAL_LINES: Final = frozenset(
    {
        PhoneNumberType.MOBILE,
        PhoneNumberType.FIXED_LINE,
        PhoneNumberType.FIXED_LINE_OR_MOBILE,
        PhoneNumberType.PERSONAL_NUMBER,
    }
)

# First digits and lengths of Visa, Mastercard, American Express, Discover, Diners Club, JCB and UnionPay.
_ISSUER: Final = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}|3[47]\d{13}"
    r"|6(?:011|5\d\d|4[4-9]\d)\d{12}|3(?:0[0-5]|[68]\d)\d{11}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14,17}"
)
_GROUPED_CARD: Final = re.compile(
    r"\d(?<![\w.,].)(?<!\d[ -].)(?:\d{3}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{3}([ -])\d{6}\2\d{4,5})(?![\w-]|[., ]\d)"
)
_PLAIN_CARD: Final = re.compile(r"\d(?<![\w.,-].)\d{12,18}(?![\w-]|[.,]\d)")
_SPEAKS_OF_CARDS: Final = re.compile(r"\b(?:card|visa|mastercard|amex|american express|cvv|cvc)\b", re.I)

_IBAN: Final = re.compile(r"[A-Z](?<!\w.)[A-Z]\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b")

# Not after a slash, as in `Chrome/122.0.0.0`, except in a URL, and no network such as 52.0.0.0/8.
_IPV4: Final = re.compile(r"\d(?:(?<=//.)|(?<![\w./-].))\d{0,2}(?:\.\d{1,3}){3}(?![\w-]|\.\d|/\d{1,2}\b)")
_IPV6: Final = re.compile(r"[23](?<![\w:.].)[0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2,34}(?![\w:]|/\d)")

# National identity numbers with a distinctive format: American, Brazilian, Spanish (two), Mexican, Chinese, Korean,
# French, and the Italian codice fiscale. All but the first have check digits. Plain numbers of nine to eleven digits,
# as in many countries, are ignored.
_IDENTITY_NUMBERS: Final[tuple[tuple[re.Pattern[str], Callable[[str], bool]], ...]] = (
    (re.compile(r"\d(?<![\w-].)\d\d-\d\d-\d{4}(?![\w-])"), ssn.is_valid),
    (re.compile(r"\d(?<![\w.].)\d\d\.\d{3}\.\d{3}-\d\d(?![\w-])"), cpf.is_valid),
    (re.compile(r"\d(?<!\w.)\d{7}-?[A-HJ-NP-TV-Z]\b"), dni.is_valid),
    (re.compile(r"[XYZ](?<!\w.)-?\d{7}-?[A-HJ-NP-TV-Z]\b"), nie.is_valid),
    (re.compile(r"[A-Z](?<!\w.)[A-Z]{3}\d{6}[HM][A-Z]{5}[A-Z0-9]\d\b"), curp.is_valid),
    (re.compile(r"[1-8](?<!\w.)\d{5}(?:19|20)\d{9}[\dX]\b"), ric.is_valid),
    (re.compile(r"\d(?<![\w-].)\d{5}-[1-4]\d{6}(?![\w-])"), rrn.is_valid),
    (re.compile(r"[12](?<![\w ].) \d\d \d\d \d[\dAB] \d{3} \d{3} \d\d(?![\w ]\d)"), nir.is_valid),
)
_MOSTLY_LETTERS: Final = re.compile(r"[A-Z](?<!\w.)[A-Z]{5}\d\d[A-EHLMPRST]\d\d[A-Z]\d{3}[A-Z]\b")


def personal_data(text: str) -> Iterator[str]:
    """Yield the kinds of personal data in `text`: email, phone, card, iban, ip, id."""
    has_digits = _DIGITS.search(text) is not None
    if "@" in text and any(_is_somebodys(match) for match in _EMAIL.finditer(text)):
        yield "email"
    if has_digits and any(_is_phone(match[0]) for pattern in _PHONES for match in pattern.finditer(text)):
        yield "phone"
    if has_digits and _has_card(text):
        yield "card"
    if any(_is_iban(match[0].replace(" ", "")) for match in _IBAN.finditer(text)):
        yield "iban"
    if any(_is_public(address) for address in _addresses(text, has_digits)):
        yield "ip"
    if _has_identity_number(text, has_digits):
        yield "id"


def _is_somebodys(mail: re.Match[str]) -> bool:
    return (
        mail["user"].lower() not in _NOBODY
        and _FILE_ENDING.fullmatch(mail["top"]) is None
        and RESERVED_DOMAIN.search(mail["domain"]) is None
    )


def _is_phone(candidate: str) -> bool:
    """Return whether it is a valid number of a line that a person may have."""
    return any(
        number_type(match.number) in _PERSONAL_LINES
        and FICTIONAL_PHONE.fullmatch(f"{match.number.country_code}{match.number.national_number}") is None
        for match in PhoneNumberMatcher(candidate, "US", leniency=Leniency.VALID)
    )


def _has_card(text: str) -> bool:
    if any(_is_card(match[0]) for match in _GROUPED_CARD.finditer(text)):
        return True
    # One in ten integers of 16 digits that begin with 4 passes for a card's.
    plain = [match[0] for match in _PLAIN_CARD.finditer(text) if _is_card(match[0])]
    return bool(plain) and _SPEAKS_OF_CARDS.search(text) is not None


def _is_card(candidate: str) -> bool:
    digits = re.sub(r"\D", "", candidate)
    return _ISSUER.fullmatch(digits) is not None and digits not in TEST_CARDS and luhn.is_valid(digits)


def _is_iban(candidate: str) -> bool:
    # The match may include following words; only one length is right for its country.
    lengths = range(15, len(candidate) + 1)
    return any(iban.is_valid(candidate[:end]) and candidate[:end] not in SAMPLE_IBANS for end in lengths)


def _addresses(text: str, has_digits: bool) -> Iterator[str]:
    for match in _IPV4.finditer(text) if has_digits else ():
        # Version and section numbers look the same, with small parts.
        if any(len(part) == 3 for part in match[0].split(".")):
            yield match[0]
    for match in _IPV6.finditer(text):
        yield match[0]


def _is_public(candidate: str) -> bool:
    try:
        address = ipaddress.ip_address(candidate)
    except ValueError:
        return False
    return address.is_global and not address.is_multicast and str(address) not in PUBLIC_RESOLVERS


def _has_identity_number(text: str, has_digits: bool) -> bool:
    if any(codicefiscale.is_valid(match[0]) for match in _MOSTLY_LETTERS.finditer(text)):
        return True
    return has_digits and any(
        is_valid(match[0]) and match[0] not in SAMPLE_IDENTITIES
        for pattern, is_valid in _IDENTITY_NUMBERS
        for match in pattern.finditer(text)
    )


_PLACEHOLDER: Final = re.compile(
    r"example|sample|dummy|x{6}|placeholder|your[_-]|12345678|\.eyJzdWIiOiIxMjM0NTY3ODkwI", re.I
)
"""Marks an invented key; the last one is the payload of jwt.io, {"sub":"1234567890", in base64."""
_MIN_DISTINCT: Final = 10
"""Minimum distinct characters of a token; random ones of 16 and more have more, `xxxx...` and `1212...` fewer."""


def has_secret(text: str) -> bool:
    """Return whether `text` has a key or token that is no placeholder."""
    return any(
        len(set(token)) >= _MIN_DISTINCT and _PLACEHOLDER.search(token) is None
        for marks, find in _FINDERS
        if any(mark in text for mark in marks)
        for token in find(text)
    )


def _detected(detector: Any, text: str) -> Iterator[str]:
    for pattern in detector.denylist:
        for match in pattern.finditer(text):
            # analyze_string checks more than the pattern, but returns only its groups.
            if any(detector.analyze_string(match[0])):
                yield match[0]


def _matched(pattern: str, text: str) -> Iterator[str]:
    return (match[0] for match in re.finditer(pattern, text))


_FINDERS: Final[tuple[tuple[tuple[str, ...], Callable[[str], Iterator[str]]], ...]] = (
    (("AKIA", "ASIA", "ABIA", "ACCA", "A3T", "aws", "AWS"), partial(_detected, AWSKeyDetector())),
    (("AccountKey=",), partial(_detected, AzureStorageKeyDetector())),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), partial(_detected, GitHubTokenDetector())),
    (("glpat-", "gldt-", "glft-", "glsoat-", "glrt-", "glptt-", "glcbt-"), partial(_detected, GitLabTokenDetector())),
    (("eyJ",), partial(_detected, JwtTokenDetector())),
    (("T3BlbkFJ",), partial(_detected, OpenAIDetector())),
    (("pypi-Ag",), partial(_detected, PypiTokenDetector())),
    (("SG.",), partial(_detected, SendGridDetector())),
    (("xox", "hooks.slack.com"), partial(_detected, SlackDetector())),
    (("sq0csp-",), partial(_detected, SquareOAuthDetector())),
    (("k_live_",), partial(_detected, StripeDetector())),
    # Not in detect-secrets; after the rules of gitleaks 8.
    (("github_pat_",), partial(_matched, r"\bgithub_pat_\w{82}\b")),
    (("sk-ant-",), partial(_matched, r"\bsk-ant-(?:api|admin|oat|ort)\d{2}-[\w-]{80,}")),
    (("sk-or-v1-",), partial(_matched, r"\bsk-or-v1-[0-9a-f]{64}\b")),
    (("sbp_", "whsec_"), partial(_matched, r"\b(?:sbp_[0-9a-f]{40}\b|whsec_[A-Za-z0-9+/=]{32,})")),
    (("hf_",), partial(_matched, r"\bhf_[A-Za-z]{34}\b")),
    (("AIza",), partial(_matched, r"\bAIza[\w-]{35}(?![\w-])")),
    (("npm_",), partial(_matched, r"\bnpm_[A-Za-z0-9]{36}\b")),
    # A header alone is an explanation; a key has a body.
    (
        ("PRIVATE KEY",),
        partial(_matched, r"-BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[ A-Z]*-----[^-]{0,200}?[A-Za-z0-9+/]{40}"),
    ),
)
"""Marks, one of which every token contains, and the function that finds the tokens."""


def privacy_labels(inputs: Sequence[LabelInput]) -> Mapping[str, Sequence[Any]]:
    """Return the column private_data: kinds found in what the model wrote and in what tools returned, sorted.

    The kinds are those of `dataset.filters.drop_private`. The matched text is neither kept nor logged. The prompt is
    not searched: it was there before the teacher.
    """
    return {"private_data": [private_data(f"{item.sampled_text}\n{item.tool_text}") for item in inputs]}


def private_data(text: str) -> list[str]:
    return sorted([*personal_data(text), *(["secret"] if has_secret(text) else [])])
