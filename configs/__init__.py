"""What do I want to train? One YAML file is one run; `loader` reads it."""

IGNORED = -100  # the label of a token that is not trained on, in every room (torch's own default)
