"""Selection of rows: filters, then choices among rows. All of it follows from labels and config."""
