"""A flow run: what its tasks share, how it reports its progress, and how it ends."""
