"""The label `private_data`: personal data, and keys and tokens in the form their issuers gave them.

The secret detectors are those of detect-secrets whose patterns are an issuer's own; its detectors by entropy or by
variable name are left out, since code and mathematics are full of what they report. A detector runs only on a text
that holds one of its marks, and nothing is verified over the network.
"""

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

from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.labelling.personal_data import personal_data

_PLACEHOLDER: Final = re.compile(
    r"example|sample|dummy|x{6}|placeholder|your[_-]|12345678|\.eyJzdWIiOiIxMjM0NTY3ODkwI", re.I
)
"""Marks an invented key; the last one is the payload of jwt.io, {"sub":"1234567890", in base64."""
_MIN_DISTINCT: Final = 10
"""Minimum distinct characters of a token; random ones of 16 and more have more, `xxxx...` and `1212...` fewer."""


def has_secret(text: str) -> bool:
    """Whether `text` has a key or token that is no placeholder."""
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
    (("sk-ant-",), partial(_matched, r"\bsk-ant-(?:api|admin)\d{2}-[\w-]{80,}")),
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
    """The column private_data: kinds found in what the model wrote and in what tools returned, sorted.

    The kinds are those of `dataset.filters.drop_private`. The matched text is neither kept nor logged. The prompt is
    not searched: it was there before the teacher.
    """
    return {"private_data": [private_data(f"{item.sampled_text}\n{item.tool_text}") for item in inputs]}


def private_data(text: str) -> list[str]:
    """The kinds of private data in `text`, sorted."""
    return sorted([*personal_data(text), *(["secret"] if has_secret(text) else [])])
