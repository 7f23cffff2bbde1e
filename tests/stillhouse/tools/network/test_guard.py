import asyncio

import pytest

from stillhouse.tools.network.guard import AddressRefused, Guard, HostUnknown, is_public

# https://www.iana.org/assignments/iana-ipv4-special-registry and .../iana-ipv6-special-registry
SPECIAL = {
    "this network": ("0.0.0.0", "0.1.2.3"),
    "private": ("10.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    "shared (CGNAT)": ("100.64.0.1", "100.100.100.200", "100.127.255.255"),
    "loopback": ("127.0.0.1", "127.255.255.254", "::1"),
    "unspecified": ("::",),
    "link-local": ("169.254.0.1", "169.254.169.254", "fe80::1", "fe80::1%eth0", "febf::1"),
    "protocol assignments": ("192.0.0.1", "192.0.0.8", "192.0.0.170", "192.0.0.192", "2001:1::4", "2001:1ff::1"),
    "documentation": ("192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1", "3fff:fff::1"),
    "6to4 relays": ("192.88.99.1", "192.88.99.255"),
    "benchmarking": ("198.18.0.1", "198.19.255.255", "2001:2::1"),
    "multicast": ("224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"),
    "reserved": ("240.0.0.1", "255.255.255.254"),
    "broadcast": ("255.255.255.255",),
    "a cloud's own": ("168.63.129.16", "fd00:ec2::254"),
    "unique local": ("fc00::1", "fdff::1"),
    "site-local": ("fec0::1", "feff::1", "fec0::1%eth0"),
    "discard only": ("100::1", "100:0:0:1::1"),
    "segment routing": ("5f00::1",),
    "ORCHID": ("2001:10::1", "2001:20::1"),
    "not assigned": ("1::1", "4000::1", "8000::1"),
    "IPv4-mapped": ("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0.0.0.0"),
    "IPv4-compatible": ("::127.0.0.1", "::10.0.0.1", "::8.8.8.8"),
    "NAT64 of a special address": ("64:ff9b::10.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::192.88.99.1"),
    "local NAT64": ("64:ff9b:1::1", "64:ff9b:1::8.8.8.8", "64:ff9b:1:ffff::1"),
    "6to4 of a special address": ("2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:101::1", "2002:6440:1::"),
    "Teredo": ("2001::1", "2001:0:a00:1::1", "2001:0:808:808:0:0:f5ff:fffe"),
}


@pytest.mark.parametrize(("range_", "address"), [(name, one) for name, all_ in SPECIAL.items() for one in all_])
def test_addresses_that_are_not_on_the_public_internet_are_told(range_: str, address: str) -> None:
    assert not is_public(address), range_


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "93.184.215.14", "100.128.0.1", "172.32.0.1", "192.88.98.1", "198.20.0.1", "223.255.255.255"),
        *("2606:4700:4700::1111", "2a00:1450::1", "3ffe::1", "2001:200::1", "64:ff9b::1.1.1.1", "2002:101:101::1"),
    ],
)
def test_public_addresses_are_told(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1"),
        *("[::1]", "[::ffff:127.0.0.1]"),
    ],
)
def test_every_spelling_of_loopback_is_refused(host: str) -> None:
    with pytest.raises(AddressRefused, match="public"):
        asyncio.run(Guard([]).check(f"http://{host}:8000/"))


@pytest.mark.parametrize(
    ("url", "word"),
    [
        *((url, "web address") for url in ("file:///etc/passwd", "ftp://example.com/", "gopher://x/", "//x", "")),
        *((url, "web address") for url in ("javascript:1", "http://")),
        *((url, "URL") for url in ("http://[::1/", "http://host:99999/")),
    ],
)
def test_only_web_addresses_are_taken(url: str, word: str) -> None:
    with pytest.raises(AddressRefused, match=word):
        asyncio.run(Guard(["x", "example.com"]).check(url))


@pytest.mark.parametrize("allowed", ["localhost", "LOCALHOST", "localhost.", "localhost:8000"])
def test_a_host_that_the_config_names_is_reached(allowed: str) -> None:
    guard = Guard([allowed, "[::1]:9000"])
    assert "127.0.0.1" in asyncio.run(guard.addresses("localhost", 8000))
    assert guard.allows("::1", 9000)
    if ":" in allowed:
        with pytest.raises(AddressRefused):
            asyncio.run(guard.addresses("localhost", 8001))


def test_one_private_address_among_public_ones_refuses_the_host() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["1.1.1.1", "10.0.0.7"]

    with pytest.raises(AddressRefused, match=r"10\.0\.0\.7"):
        asyncio.run(Guard([], resolve).addresses("mixed.example", 443))


def test_a_host_without_an_address_is_named() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    with pytest.raises(HostUnknown, match=r"nowhere\.example"):
        asyncio.run(Guard([], resolve).addresses("nowhere.example", 80))
