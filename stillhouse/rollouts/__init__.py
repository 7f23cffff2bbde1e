"""Sampling trajectories from an endpoint: many at once, with tools, journaled before use."""

from stillhouse.rollouts.collector import RolloutCollector
from stillhouse.rollouts.plan import EverySample, Plan, UntilAccepted

__all__ = ["EverySample", "Plan", "RolloutCollector", "UntilAccepted"]
