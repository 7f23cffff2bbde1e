"""Leaves with 0 where the address in HEALTH_URL answers 200, and with 1 where it does not: the images' health check.

A container without HEALTH_URL runs one flow and ends; its exit code says how it went, and nothing is asked here.
"""

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 8.0


def problem(url: str) -> str | None:
    """What keeps `url` from being healthy; None where it answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return None if answer.status == 200 else f"{url}: HTTP {answer.status}"
    except (urllib.error.URLError, OSError) as error:
        return f"{url}: {error}"


if __name__ == "__main__":
    asked = os.environ.get("HEALTH_URL")
    sys.exit(asked and problem(asked))
