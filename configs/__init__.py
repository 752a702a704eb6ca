"""What do I want to train? One YAML file is one run; `loader` reads it."""
