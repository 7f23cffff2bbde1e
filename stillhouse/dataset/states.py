"""Turns of trajectories that were paid for, as prompts: the conversation before a turn (prefix replay)."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from stillhouse.dataset.totals import num_given
from stillhouse.errors import InputError
from stillhouse.store.fingerprint import prompt_id, unit_interval, variant_id
from stillhouse.types import JsonObject, Prompt, PromptMetadata


def replayed_states(
    rows: Sequence[JsonObject], decay: float, number: int, seed: int
) -> tuple[list[Prompt], list[PromptMetadata]]:
    """Return about `number` states of a dataset's rows, each row's in equal number, and their metadata.

    Turn t of K, from 1, is drawn with probability decay^t / sum_u decay^u, u = 1..K (ReOPD, arXiv 2607.04763, section
    4). States that are drawn again are variants of one prompt. Raises InputError without a row.
    """
    if not rows:
        raise InputError(
            "on_policy.source is `replay`, but the dataset has no training row: all kept rows are its validation. "
            "Lower dataset.validation_fraction, or sample more"
        )
    num_drawn = Counter[str]()
    states, metadata = list[Prompt](), list[PromptMetadata]()
    for draw in range(-(-number // len(rows))):
        for row in rows:
            turn = _drawn_turn(row["turns"], decay, unit_interval("replay", row["id"], draw, seed))
            messages = row["messages"][: num_given(row["messages"], row["turns"] - turn)]
            tools = [tool["function"]["name"] for tool in row["tools"] or ()]
            drawn = prompt_id(messages, tools)
            state = Prompt(variant_id(drawn, num_drawn[drawn]), messages, tools)
            num_drawn[drawn] += 1
            states.append(state)
            known = (row["expected_answer"], row["tag"], row["verifier"], row["metadata"] or {})
            metadata.append(PromptMetadata(state.id, *known))
    return states, metadata


def _drawn_turn(num_turns: int, decay: float, chance: float) -> int:
    weights = list(accumulate(decay**turn for turn in range(num_turns)))
    return bisect_right(weights, chance * weights[-1])
