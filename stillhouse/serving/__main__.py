"""`python -m stillhouse.serving MODEL`: the server as a process of its own."""

import argparse
import json
import os
import sys

from stillhouse.errors import StillhouseError
from stillhouse.processes.exit import without_teardown
from stillhouse.processes.gc_tuning import rarely_collected


def main() -> int:
    """Serves until told to stop; returns the exit code."""
    options = _parser().parse_args()
    if options.log_file:
        # Everything said on the way to a failure belongs in the log, also by libraries that write to the descriptor.
        with open(options.log_file, "ab", buffering=0) as log:
            os.dup2(log.fileno(), sys.stderr.fileno())
    del options.log_file
    try:
        with rarely_collected():
            from stillhouse.serving.server import serve

        serve(**vars(options))
    except StillhouseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stillhouse.serving", description="Serve a model over HTTP.")
    parser.add_argument("model", help="embedded:teacher, embedded:student, a folder, or a Hugging Face id")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--name", help="what clients call the model; by default MODEL")
    parser.add_argument(
        "--chat-template-kwargs",
        type=json.loads,
        default={},
        help="defaults of the chat template's variables as JSON, such as '{\"enable_thinking\": false}'",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    parser.add_argument("--num-threads", type=int, help="CPU threads")
    parser.add_argument("--max-batch", type=int, default=64, help="sequences sampled at once")
    parser.add_argument("--max-pending", type=int, default=256, help="sequences that may wait before 429")
    parser.add_argument("--api-key-env", help="environment variable that holds the key clients must send")
    parser.add_argument(
        "--allowed-hosts",
        type=lambda names: names.split(","),
        default=(),
        help="host names of the server besides IP addresses, `localhost` and, beyond loopback, this machine's, "
        "separated by commas",
    )
    parser.add_argument("--log-file", help="append errors and warnings here instead of standard error")
    return parser


if __name__ == "__main__":
    with without_teardown():
        sys.exit(main())
