"""How requests to an endpoint are signed: by a key of the environment, at Azure also by tokens of Microsoft Entra."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from stillhouse.errors import AuthenticationError
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.keys import place_of, unset
from stillhouse.sellers import AZURE

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

_SCOPE: Final = "https://ai.azure.com/.default"
"""https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle"""


@asynccontextmanager
async def signed(endpoint: Endpoint, variable: str) -> AsyncIterator[Endpoint]:
    """Yield the endpoint with the key in `variable`, or at Azure, where it is not set, with tokens of Microsoft Entra.

    Entra's are those of azure-identity's DefaultAzureCredential, which is closed with the block. Raise
    AuthenticationError if there is neither, or the key cannot be sent.
    """
    if key := os.environ.get(variable, "").strip():
        if not key.isascii() or not key.isprintable() or " " in key:
            raise AuthenticationError(
                f"{variable} of {place_of(variable)} holds characters that are in no API key, such as a space, a line "
                "break or typographic quotes. Copy the key anew",
                code="no-key",
            )
        yield replace(endpoint, api_key=key, key_variable=variable)
        return
    if not AZURE.is_at(endpoint.base_url) or endpoint.client == "direct":
        raise _no_key(endpoint, variable, " (any value will do where no key is asked for)")
    if find_spec("azure") is None or find_spec("azure.identity") is None:
        raise _no_key(
            endpoint, variable, "; or sign in by Microsoft Entra: pip install 'stillhouse[azure]', then az login"
        )
    from azure.identity.aio import DefaultAzureCredential

    async with DefaultAzureCredential() as credential:
        yield replace(endpoint, api_key="", token=tokens_of(credential))


def tokens_of(credential: "AsyncTokenCredential") -> Callable[[], Awaitable[str]]:
    """Return what gives a token, renewed in time, for each request; it raises RequestFailed if there is none."""
    from azure.core.exceptions import AzureError, ClientAuthenticationError
    from azure.identity.aio import get_bearer_token_provider

    provide = get_bearer_token_provider(credential, _SCOPE)

    async def token() -> str:
        try:
            return await provide()
        except AzureError as error:
            kind = FailureKind.AUTH if isinstance(error, ClientAuthenticationError) else FailureKind.TRANSIENT
            raise RequestFailed(Failure(kind, f"Microsoft Entra gives no token: {error.message}")) from None

    return token


def _no_key(endpoint: Endpoint, variable: str, remedy: str) -> AuthenticationError:
    return AuthenticationError(
        f"{endpoint.base_url}: no API key: {unset(variable)}, or name another variable in "
        f"{endpoint.role.key_setting}{remedy}",
        code="no-key",
    )
