"""What benchmarks share: rounds of alternating sides, peers and their environments, trainings against TRL."""
