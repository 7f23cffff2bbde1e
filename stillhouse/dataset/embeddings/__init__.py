"""Embeddings of prompts, for selecting rows that differ."""
