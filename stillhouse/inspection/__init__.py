"""Looking at a store: what in it is damaged, and what can be saved of a damaged journal."""

from stillhouse.inspection.store import Finding, inspect_store, salvage_store

__all__ = ["Finding", "inspect_store", "salvage_store"]
