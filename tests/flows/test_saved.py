"""What a run that ends early says it has saved."""

from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.errors import QuotaError
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, completion, error

NUM_PROMPTS, NUM_ANSWERS = 24, 14


def test_the_error_of_one_shard_counts_what_all_shards_have_finished(generate_from: Callable[..., Any]) -> None:
    def script(request: ReceivedRequest) -> Reply:
        if request.index >= NUM_ANSWERS:
            return error(402, "Insufficient credits")
        return Reply(completion("answer to " + request.body["messages"][-1]["content"]))

    rows = [{"prompt": f"question {number}", "tools": []} for number in range(NUM_PROMPTS)]
    with SimulatedProvider(script) as provider, pytest.raises(QuotaError) as raised:
        generate_from(provider.url, rows, runtime={"shard_size": 4, "concurrency": 3})
    assert provider.num_billed == NUM_ANSWERS
    assert f"Saved: {NUM_ANSWERS} of {NUM_PROMPTS} finished" in str(raised.value)
    assert str(raised.value).count("Saved:") == 1
