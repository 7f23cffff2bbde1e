"""Completions through a provider's batch endpoint, for half the price."""

from stillhouse.inference.batch.client import BatchClient, BatchPace
from stillhouse.inference.batch.rules import MAX_REQUESTS, batch_controller, require_batchable

__all__ = ["MAX_REQUESTS", "BatchClient", "BatchPace", "batch_controller", "require_batchable"]
