"""Progress of stages: what they report, how it reads, and how a terminal shows it."""
