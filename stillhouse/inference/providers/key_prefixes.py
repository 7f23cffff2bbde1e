"""Sellers by the beginnings of their keys, to notice a key of one that is about to be sent to another."""

from typing import Final
from urllib.parse import urlsplit

_OPENAI: Final = ("OpenAI", "openai.com")
_SELLERS: Final = {
    "sk-ant-": ("Anthropic", "anthropic.com"),
    "sk-or-": ("OpenRouter", "openrouter.ai"),
    **dict.fromkeys(("sk-proj-", "sk-svcacct-", "sk-admin-"), _OPENAI),
    "gsk_": ("Groq", "groq.com"),
    "AIza": ("Google", "googleapis.com"),
    "xai-": ("xAI", "x.ai"),
    "csk-": ("Cerebras", "cerebras.ai"),
    "pplx-": ("Perplexity", "perplexity.ai"),
    "nvapi-": ("NVIDIA", "nvidia.com"),
    "tgp_v1_": ("Together", "together.xyz"),
    "fw_": ("Fireworks", "fireworks.ai"),
    "hf_": ("Hugging Face", "huggingface.co"),
}
_OTHER_DOMAINS: Final = ("openai.azure.com", "services.ai.azure.com", "deepseek.com", "mistral.ai", "amazonaws.com")
"""Of sellers whose keys have no beginning of their own. Gateways of one's own may take anybody's key."""


def foreign_owner(key: str, base_url: str) -> str | None:
    """Return the seller that a key belongs to, where `base_url` is another one's; None if nothing speaks for that."""
    host = f".{urlsplit(base_url).hostname or ''}"
    owner = next((seller for beginning, seller in _SELLERS.items() if key.startswith(beginning)), None)
    domains = {*_OTHER_DOMAINS, *(domain for _, domain in _SELLERS.values())}
    at = next((domain for domain in domains if host.endswith(f".{domain}")), None)
    return None if owner is None or at in (None, owner[1]) else owner[0]
