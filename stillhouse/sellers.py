"""Sellers of models, as far as a config has to know them: their hosts, keys, and which models are theirs alone."""

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit


class Seller(NamedTuple):
    name: str
    hosts: tuple[str, ...]
    """Domains of its endpoints, their subdomains included."""
    models: str = ""
    """Pattern that the names of models begin with which no one else serves; empty where weights are open."""
    base_url: str = ""
    """Address of its API, where there is one for all customers."""
    keys: tuple[str, ...] = ()
    """Beginnings that its keys alone have."""
    scores: bool = True
    """False where its API gives log-probabilities of given tokens for no model."""

    def is_at(self, url: str) -> bool:
        host = urlsplit(url).hostname or ""
        return any(f".{host}".endswith(f".{known}") for known in self.hosts)


OPENAI: Final = Seller(
    "OpenAI",
    ("openai.com",),
    # Not gpt-oss, gpt2, gpt-j or gpt-neo, whose weights are open.
    r"(?:(?:openrouter/)?openai/)?(?:gpt-(?!oss|2\b|j\b|neo)|chatgpt-|o[134](?:-|$))",
    "https://api.openai.com/v1",
    ("sk-proj-", "sk-svcacct-", "sk-admin-"),
    scores=False,
)
AZURE: Final = Seller(
    "Azure", ("openai.azure.com", "cognitiveservices.azure.com", "services.ai.azure.com"), scores=False
)
ANTHROPIC: Final = Seller(
    "Anthropic", ("anthropic.com",), r"(?:(?:openrouter/)?anthropic/)?claude", keys=("sk-ant-",), scores=False
)
GEMINI: Final = Seller(
    "Google",
    ("generativelanguage.googleapis.com",),
    r"(?:(?:openrouter/)?google/)?gemini",
    keys=("AIza",),
    scores=False,
)
OPENROUTER: Final = Seller("OpenRouter", ("openrouter.ai",), keys=("sk-or-",), scores=False)
MISTRAL: Final = Seller("Mistral", ("mistral.ai",), scores=False)
GROQ: Final = Seller("Groq", ("groq.com",), keys=("gsk_",), scores=False)
DEEPSEEK: Final = Seller("DeepSeek", ("deepseek.com",))

_ALL: Final = (
    *(OPENAI, AZURE, ANTHROPIC, GEMINI, OPENROUTER, MISTRAL, GROQ, DEEPSEEK),
    Seller("xAI", ("x.ai",), keys=("xai-",)),
    Seller("Cerebras", ("cerebras.ai",), keys=("csk-",)),
    Seller("Perplexity", ("perplexity.ai",), keys=("pplx-",)),
    Seller("NVIDIA", ("nvidia.com",), keys=("nvapi-",)),
    Seller("Together", ("together.xyz",), keys=("tgp_v1_",)),
    Seller("Fireworks", ("fireworks.ai",), keys=("fw_",)),
    Seller("Hugging Face", ("huggingface.co",), keys=("hf_",)),
    Seller("Amazon", ("amazonaws.com",)),
)
_SILENT: Final = tuple(seller for seller in _ALL if not seller.scores)
_CANNOT: Final = "{} cannot score what a student sampled: its API gives no log-probabilities of given tokens"


def foreign_owner(key: str, base_url: str) -> str | None:
    """Return the seller that a key belongs to, where `base_url` is another one's; None if nothing speaks for that.

    Gateways of one's own may take anybody's key.
    """
    owner = next((seller for seller in _ALL if key.startswith(seller.keys)), None)
    is_sellers = any(seller.is_at(base_url) for seller in _ALL)
    return None if owner is None or not is_sellers or owner.is_at(base_url) else owner.name


def cannot_score(model: str) -> str | None:
    """Return why the model cannot score a student's tokens, as a clause; None if its name does not rule it out.

    OpenAI's chat models return log-probabilities only of tokens that they sampled; Anthropic's and Gemini return none.
    """
    is_silent = any(seller.models and re.match(seller.models, model, re.IGNORECASE) for seller in _SILENT)
    return _CANNOT.format(model) if is_silent else None


def cannot_score_at(base_url: str) -> str | None:
    """Return why models of the server cannot score a student's tokens; None if its address does not rule it out."""
    return _CANNOT.format(urlsplit(base_url).hostname) if any(seller.is_at(base_url) for seller in _SILENT) else None
