"""Prompts of validation rows, for the student to answer while it is trained."""

from collections.abc import Iterable

from stillhouse.types import JsonObject, Prompt, PromptMetadata


def validation_prompts(rows: Iterable[JsonObject], most: int) -> tuple[list[Prompt], dict[str, PromptMetadata]]:
    """The first `most` distinct prompts whose answers can be verified, and what they are verified against.

    Args:
        rows: validation rows of a dataset; a prompt is what stands before the first assistant message.
        most: prompts wanted; there may be fewer.
    """
    prompts: dict[str, Prompt] = {}
    metadata: dict[str, PromptMetadata] = {}
    for row in rows:
        if len(prompts) == most:
            break
        prompt_id = row["prompt_id"]
        if row.get("expected_answer") is None or prompt_id in prompts:
            continue
        said = next((place for place, m in enumerate(row["messages"]) if m["role"] == "assistant"), None)
        prompts[prompt_id] = Prompt(
            prompt_id, row["messages"][:said], [tool["function"]["name"] for tool in row["tools"] or ()]
        )
        metadata[prompt_id] = PromptMetadata(
            prompt_id, row["expected_answer"], row.get("tag"), row["verifier"], row.get("metadata") or {}
        )
    return list(prompts.values()), metadata
