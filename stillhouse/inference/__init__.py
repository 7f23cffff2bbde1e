"""Asking models: HTTP client, retries, rate limits, budget and the journal of paid answers."""

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.journal import Journal, open_journal
from stillhouse.inference.rate_limit import Controller, shared_controller
from stillhouse.inference.stats import RolloutStats

__all__ = ["Controller", "Endpoint", "Journal", "RolloutStats", "open_journal", "shared_controller"]
