"""Sampling trajectories from an endpoint: many at once, with tools, journaled before use."""

from stillhouse.rollouts.endpoint import Endpoint
from stillhouse.rollouts.engine import RolloutCollector
from stillhouse.rollouts.journal import Journal, open_journal
from stillhouse.rollouts.keys import rollout_key
from stillhouse.rollouts.limits import Controller, shared_controller
from stillhouse.rollouts.plan import EverySample, Plan, UntilAccepted
from stillhouse.rollouts.stats import RolloutStats

__all__ = [
    "Controller",
    "Endpoint",
    "EverySample",
    "Journal",
    "Plan",
    "RolloutCollector",
    "RolloutStats",
    "UntilAccepted",
    "open_journal",
    "rollout_key",
    "shared_controller",
]
