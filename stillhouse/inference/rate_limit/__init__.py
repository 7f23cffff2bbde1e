"""Adaptive rate control: how many requests may be in flight, and how many requests and tokens a second."""

from stillhouse.inference.rate_limit.control import RateControl
from stillhouse.inference.rate_limit.controller import Controller, controller_of, limits_file, shared_controller
from stillhouse.inference.rate_limit.headers import LimitScope, RateLimits, read_limits
from stillhouse.inference.rate_limit.values import Caps, ControlSnapshot, Outcome, RequestSize, Ticket

__all__ = [
    "Caps",
    "ControlSnapshot",
    "Controller",
    "LimitScope",
    "Outcome",
    "RateControl",
    "RateLimits",
    "RequestSize",
    "Ticket",
    "controller_of",
    "limits_file",
    "read_limits",
    "shared_controller",
]
