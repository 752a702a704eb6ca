"""One run: its state, its directory, its checkpoints, its figures and its report."""
