"""Sampling and scoring with a transformers model, in process or behind an OpenAI-compatible server."""
