"""The sellers' models that the guide, the README, the configs, the examples and a new project name.

`make renew-model FROM=... TO=...` replaces a retired one here and in all those places; a test finds any other name.
"""

from typing import Final

EXAMPLE_MODELS: Final = ("gpt-5.4-mini", "claude-sonnet-5-5", "gemini-3.8-flash", "deepseek-flash")
SUGGESTED: Final = f"openai/{EXAMPLE_MODELS[0]}"
"""As OpenRouter calls it."""
