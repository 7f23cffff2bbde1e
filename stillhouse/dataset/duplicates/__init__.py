"""Duplicate rows: signatures, near-duplicates by MinHash, clusters of near-duplicate prompts."""
