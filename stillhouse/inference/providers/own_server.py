"""The server of `stillhouse.serving`, which a run starts for a local model."""

from typing import Final

from stillhouse.inference.providers.provider import Provider
from stillhouse.types import JsonObject


class _OwnServer(Provider):
    def schema_keys(self, schema: JsonObject) -> JsonObject:
        """Return nothing: it samples freely, and answers are checked here in any case."""
        return {}

    def top_token_keys(self) -> JsonObject:
        # It gives them under the sampling temperature, unless it is asked otherwise.
        return {**super().top_token_keys(), "raw_logprobs": True}


OWN_SERVER: Final = _OwnServer(has_token_ids=True)
