"""Child processes: guarded so that they end with their parent, and helpers that answer questions within limits."""
