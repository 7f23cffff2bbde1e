"""Secrets and personal data in a conversation that came from elsewhere, wherever in it they stand."""

import re
from typing import Any

from stillhouse.dataset.labelling.privacy import has_secret, private_data
from stillhouse.interop.source_record import SourceConversation
from stillhouse.store import exact_json


def private_places(conversation: SourceConversation, *, with_personal: bool) -> dict[str, list[str]]:
    """Return the places of each kind of private data, secrets alone unless `with_personal`; never what it is."""
    parts: dict[str, Any] = {f"messages[{at}] ({one['role']})": one for at, one in enumerate(conversation.messages)}
    found: dict[str, list[str]] = {}
    parts |= {key: getattr(conversation, key) for key in ("metadata", "schemas", "failure")}
    for place, part in parts.items():
        text = plain_text(part)
        for kind in private_data(text) if with_personal else ["secret"] * has_secret(text):
            found.setdefault(kind, []).append(place)
    return found


def plain_text(value: Any) -> str:
    """Return a value as JSON without escaped line breaks, also of JSON in its texts: a token begins behind them."""
    return re.sub(r"\\+[nrt]", "\n", exact_json.dumps(value, default=str).decode())
