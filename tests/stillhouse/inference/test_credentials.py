import asyncio
import time
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

from stillhouse.errors import AuthenticationError
from stillhouse.inference.credentials import signed, tokens_of
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import FailureKind, RequestFailed

AZURE = "https://shop.openai.azure.com/openai/v1"


def sign(url: str, **endpoint: Any) -> Endpoint:
    async def main() -> Endpoint:
        async with signed(Endpoint(url, "m", "m", **endpoint), "SHOP_KEY") as one:
            return one

    return asyncio.run(main())


@pytest.mark.parametrize("url", [AZURE, "https://models.example/v1"])
def test_a_key_of_the_environment_comes_first_without_the_space_around_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", " sk-1234567890\n")
    endpoint = sign(url)
    assert (endpoint.api_key, endpoint.key_variable, endpoint.token) == ("sk-1234567890", "SHOP_KEY", None)
    assert "sk-1234567890" not in repr(endpoint)


@pytest.mark.parametrize("key", ["“sk-12345”", "sk-1\nsk-2", "sk-12 34", "ключ"])
def test_a_key_that_no_header_holds_is_refused_without_being_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", key)
    with pytest.raises(AuthenticationError, match="SHOP_KEY") as caught:
        sign("https://models.example/v1")
    assert caught.value.code == "no-key"
    assert key not in str(caught.value)


@pytest.mark.parametrize("value", ["", "  "])
def test_without_a_key_the_error_names_the_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", value)
    for url, endpoint in (("https://models.example/v1", {}), (AZURE, {"client": "direct"})):
        with pytest.raises(AuthenticationError, match="SHOP_KEY") as caught:
            sign(url, **endpoint)
        assert caught.value.code == "no-key"


def test_azure_without_a_key_is_asked_by_tokens_of_entra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_KEY", raising=False)
    endpoint = sign(AZURE)
    assert endpoint.token is not None
    assert endpoint.api_key == ""


class Credential:
    """Gives tokens that are valid for some seconds, or raises."""

    def __init__(self, valid_s: float = 3600.0, error: Exception | None = None) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.valid_s = valid_s
        self.error = error

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked.append(scopes)
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        return AccessToken(f"token-{len(self.asked)}", int(time.time() + self.valid_s))


def test_a_thousand_requests_share_a_token_until_it_ends() -> None:
    async def many(credential: Any) -> set[str]:
        token = tokens_of(credential)
        return set(await asyncio.gather(*(token() for _ in range(1000))))

    lasting = Credential()
    assert asyncio.run(many(lasting)) == {"token-1"}
    assert lasting.asked == [("https://ai.azure.com/.default",)]

    async def twice(credential: Any) -> list[str]:
        token = tokens_of(credential)
        return [await token(), await token()]

    assert asyncio.run(twice(Credential(valid_s=1.0))) == ["token-1", "token-2"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ClientAuthenticationError("please run az login"), FailureKind.AUTH),
        (ServiceRequestError("no network"), FailureKind.TRANSIENT),
    ],
)
def test_no_token_is_a_failure_like_others(error: Exception, kind: FailureKind) -> None:
    token = tokens_of(Credential(error=error))  # type: ignore[arg-type]
    with pytest.raises(RequestFailed) as caught:
        asyncio.run(token())  # type: ignore[arg-type]
    assert caught.value.failure.kind is kind
