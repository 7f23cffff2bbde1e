"""Traces that agents leave: sessions, step by step, and logs of a model's calls."""
