import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from stillhouse.tools.network.guard import AddressRefused, Guard
from stillhouse.tools.network.pinned import guarded_client


def get(guard: Guard, url: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with guarded_client(guard, 5.0) as client:
            return await client.get(url)

    return asyncio.run(ask())


class Answers:
    """A resolver that gives another answer every time, as a rebinding DNS server does."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers: Iterator[list[str]] = iter(answers)
        self.num_asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.num_asked += 1
        return next(self._answers)


def test_a_redirect_to_a_private_host_is_refused(site: Any) -> None:
    site.html("/secret", "secret")
    site.redirect("/start", site.url("/secret", "localhost"))
    with pytest.raises(AddressRefused, match="localhost"):
        get(Guard([site.host]), site.url("/start"))
    assert site.seen == ["/start"]


def test_a_redirect_to_an_allowed_host_is_followed_and_names_the_host(site: Any) -> None:
    site.html("/end", "there")
    site.redirect("/start", site.url("/end", "localhost"))
    answer = get(Guard([site.host, "localhost"]), site.url("/start"))
    assert (answer.status_code, str(answer.url)) == (200, site.url("/end", "localhost"))
    assert answer.request.headers["host"] == f"localhost:{site.port}"


def test_the_connection_goes_to_the_address_that_was_checked(site: Any) -> None:
    site.html("/", "hello")
    answers = Answers(["127.0.0.1"])
    assert get(Guard(["pinned.example"], answers), site.url("/", "pinned.example")).status_code == 200
    assert answers.num_asked == 1


def test_a_name_that_changes_its_address_after_the_first_answer_is_refused(site: Any) -> None:
    site.html("/", "hello")
    site.redirect("/start", "http://rebinding.example/again")
    # The first host is allowed; the second one's answer is checked when it is asked for, and used at once.
    answers = Answers(["127.0.0.1"], ["127.0.0.1"])
    with pytest.raises(AddressRefused, match="rebinding"):
        get(Guard(["start.example"], answers), site.url("/start", "start.example"))


def test_the_next_checked_address_is_tried_where_one_takes_no_connection(site: Any) -> None:
    site.html("/", "hello")
    answers = Answers(["127.0.0.99", "127.0.0.1"])
    assert get(Guard(["two.example"], answers), site.url("/", "two.example")).status_code == 200


def test_a_proxy_of_the_environment_is_not_used(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site.html("/", "hello")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert get(Guard([site.host]), site.url("/")).status_code == 200
