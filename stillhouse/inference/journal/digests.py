"""Digests of records, which tell a record whose bytes changed on the disk from one that is as it was written.

They find damage, not forgery: whoever may write to the file can write a digest too.
"""

from typing import Final

from xxhash import xxh3_64_digest

DIGEST_BYTES: Final = 8


def digest_of(place: bytes, body: bytes) -> bytes:
    """XXH3 of a place and the body stored there, 8 bytes: an index that leads to another row is noticed as well."""
    return xxh3_64_digest(place + body)


def record_name(place: bytes) -> str:
    """What lies at a place, in words for a message."""
    kind = {b"0": "the trajectory", b"1": "completion {turn}", b"2": "tool result {call} of completion {turn}"}
    turn, call = place[33:39].decode(errors="replace").lstrip("0"), place[39:45].decode(errors="replace").lstrip("0")
    known = kind.get(place[32:33], "a record of unknown kind")
    return f"{known.format(turn=turn or '0', call=call or '0')} of rollout {place[:32].hex()}"
