"""Sellers of models, as far as a config has to know them: their hosts, and which models are theirs alone."""

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit


class Seller(NamedTuple):
    hosts: tuple[str, ...]
    """Domains of its endpoints, their subdomains included."""
    models: str = ""
    """Pattern that the names of models begin with which no one else serves; empty where weights are open."""
    base_url: str = ""
    """Address of its API, where there is one for all customers."""
    scores: bool = False
    """Whether its API gives log-probabilities of given tokens."""

    def is_at(self, url: str) -> bool:
        host = urlsplit(url).hostname or ""
        return any(f".{host}".endswith(f".{known}") for known in self.hosts)


OPENAI: Final = Seller(
    ("openai.com",),
    # Not gpt-oss, gpt2, gpt-j or gpt-neo, whose weights are open.
    r"(?:(?:openrouter/)?openai/)?(?:gpt-(?!oss|2\b|j\b|neo)|chatgpt-|o[134](?:-|$))",
    "https://api.openai.com/v1",
)
AZURE: Final = Seller(("openai.azure.com", "cognitiveservices.azure.com", "services.ai.azure.com"))
ANTHROPIC: Final = Seller(("anthropic.com",), r"(?:(?:openrouter/)?anthropic/)?claude")
GEMINI: Final = Seller(("generativelanguage.googleapis.com",), r"(?:(?:openrouter/)?google/)?gemini")
OPENROUTER: Final = Seller(("openrouter.ai",))
MISTRAL: Final = Seller(("mistral.ai",))
GROQ: Final = Seller(("groq.com",))
DEEPSEEK: Final = Seller(("deepseek.com",), scores=True)

_ALL: Final = (OPENAI, AZURE, ANTHROPIC, GEMINI, OPENROUTER, MISTRAL, GROQ, DEEPSEEK)
_SILENT: Final = tuple(seller for seller in _ALL if not seller.scores)


def cannot_score(model: str) -> str | None:
    """Return why the model cannot score a student's tokens, as a clause; None if its name does not rule it out.

    OpenAI's chat models return log-probabilities only of tokens that they sampled; Anthropic's and Gemini return none.
    """
    if not any(seller.models and re.match(seller.models, model, re.IGNORECASE) for seller in _SILENT):
        return None
    return f"{model} cannot score what a student sampled: its API gives no log-probabilities of given tokens"


def cannot_score_at(base_url: str) -> str | None:
    """Return why models of the server cannot score a student's tokens; None if its address does not rule it out."""
    if not any(seller.is_at(base_url) for seller in _SILENT):
        return None
    host = urlsplit(base_url).hostname
    return f"{host} cannot score what a student sampled: its API gives no log-probabilities of given tokens"
