"""Completions through a provider's batch endpoint, for half the price."""

from stillhouse.rollouts.batch.client import MAX_REQUESTS, BatchClient, BatchPace
from stillhouse.rollouts.batch.rules import require_batchable

__all__ = ["MAX_REQUESTS", "BatchClient", "BatchPace", "require_batchable"]
