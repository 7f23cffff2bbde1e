"""Rollouts against peers: the engine, scripts, and packages from the index through the same scenarios."""
