"""vLLM servers that a run starts for its own models, from an environment of vLLM's own."""
