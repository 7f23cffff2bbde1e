"""The images' health check: exits with 0 if the address in HEALTH_URL answers 200, else with 1.

A container without HEALTH_URL runs one flow and is always healthy; its exit code tells whether the flow failed.
"""

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 8.0


def problem(url: str) -> str | None:
    """Return why `url` is not healthy; None if it answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            return None if response.status == 200 else f"{url}: HTTP {response.status}"
    except (urllib.error.URLError, OSError) as error:
        return f"{url}: {error}"


if __name__ == "__main__":
    health_url = os.environ.get("HEALTH_URL")
    sys.exit(health_url and problem(health_url))
