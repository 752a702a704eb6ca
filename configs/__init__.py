"""Read the YAML file of a run: `loader` turns it into checked values."""

# The label of a token that is not trained on, in every room; it is torch's default, too.
IGNORED = -100
