"""Metrics, progress and measurements of a training while it runs."""
