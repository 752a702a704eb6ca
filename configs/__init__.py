"""Read the YAML file of a run: `loader` turns it into checked values."""

# The label of a token that is not trained on, in every room, as in torch.
IGNORED = -100
