"""Rows that repeat others: signatures, near-duplicates by MinHash, clusters of prompts."""
