"""Everything needed to continue a training bit for bit."""
