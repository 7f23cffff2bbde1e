import asyncio

import pytest

from stillhouse.tools.network.guard import AddressRefused, Guard, HostUnknown, is_public


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "2002:7f00:1::",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "2001:db8::1",
    ],
)
def test_addresses_that_are_not_on_the_public_internet_are_told(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "64:ff9b::1.1.1.1"])
def test_public_addresses_are_told(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
    ],
)
def test_every_spelling_of_loopback_is_refused(host: str) -> None:
    with pytest.raises(AddressRefused, match="not on the public internet"):
        asyncio.run(Guard([]).check(f"http://{host}:8000/"))


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://example.com/", "gopher://x/", "javascript:1", "//x", "http://", ""]
)
def test_only_web_addresses_are_taken(url: str) -> None:
    with pytest.raises(AddressRefused, match="not a web address"):
        asyncio.run(Guard(["x", "example.com"]).check(url))


def test_a_url_that_is_none_is_refused_and_does_not_raise_anything_else() -> None:
    with pytest.raises(AddressRefused, match="not a URL"):
        asyncio.run(Guard([]).check("http://[::1/"))
    with pytest.raises(AddressRefused, match="not a URL"):
        asyncio.run(Guard([]).check("http://host:99999/"))


@pytest.mark.parametrize("allowed", ["localhost", "LOCALHOST", "localhost.", "localhost:8000"])
def test_a_host_that_the_config_names_is_reached(allowed: str) -> None:
    assert "127.0.0.1" in asyncio.run(Guard([allowed]).addresses("localhost", 8000))


def test_a_host_named_with_a_port_is_reached_at_that_port_alone() -> None:
    guard = Guard(["localhost:8000", "[::1]:9000"])
    with pytest.raises(AddressRefused):
        asyncio.run(guard.addresses("localhost", 8001))
    assert guard.allows("::1", 9000)


def test_one_private_address_among_public_ones_refuses_the_host() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["1.1.1.1", "10.0.0.7"]

    with pytest.raises(AddressRefused, match=r"10\.0\.0\.7"):
        asyncio.run(Guard([], resolve).addresses("mixed.example", 443))


def test_a_host_without_an_address_is_named() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    with pytest.raises(HostUnknown, match=r"no host 'nowhere\.example'"):
        asyncio.run(Guard([], resolve).addresses("nowhere.example", 80))
