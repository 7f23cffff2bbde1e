"""Serves a simulated provider until standard input ends, and prints its URL.

The service is described as JSON (`tests.provider.answers.Service`) or in a file of it:

    python -m tests.provider --service '{"latency_s": 0.2, "retry_after": "whole", "has_headers":
        true, "steps": [{"at_s": 0, "limits": {"requests_per_minute": 1200}}], "faults": {"500": 0.05}}'
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.provider.answers import Service
from tests.provider.provider import SimulatedProvider


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", default="{}", help="the service as JSON, or a file of it")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    chosen = parser.parse_args(arguments)
    described = chosen.service if chosen.service.startswith("{") else Path(chosen.service).read_text(encoding="utf-8")
    with SimulatedProvider(service=Service.model_validate_json(described), port=chosen.port) as provider:
        sys.stdout.write(f"{provider.url}\n")
        sys.stdout.flush()
        # Whoever started this holds the other end: it ends with them, however they end.
        sys.stdin.read()


if __name__ == "__main__":
    main()
