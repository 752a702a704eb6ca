"""How does a run survive being stopped? Checkpoints, the run directory, and where a run starts from."""
