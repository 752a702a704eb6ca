"""Models as files: our checkpoints, and what other programs write and read."""
