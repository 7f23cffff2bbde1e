"""A provider of completions for tests and benchmarks: scripted answers, limits, latencies, faults, a ledger."""

from stillhouse.testing import completion
from tests.provider.provider import SimulatedProvider
from tests.provider.reply import ReceivedRequest, Reply, Script, error

__all__ = ["ReceivedRequest", "Reply", "Script", "SimulatedProvider", "completion", "error"]
