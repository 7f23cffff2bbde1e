"""Looking at a store: what in it is damaged, and what to do about it."""

from stillhouse.inspection.store import Finding, inspect_store

__all__ = ["Finding", "inspect_store"]
