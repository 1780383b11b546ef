"""Training: the state, the loop (which knows no Ray), metric sinks, run identity."""
