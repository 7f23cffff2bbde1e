"""Completions through a provider's batch endpoint, for half the price."""

from stillhouse.inference.batch.client import MAX_REQUESTS, BatchClient, BatchPace, batch_controller, require_batchable

__all__ = ["MAX_REQUESTS", "BatchClient", "BatchPace", "batch_controller", "require_batchable"]
