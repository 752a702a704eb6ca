"""A chat in the terminal, or completion for a model that was only pretrained."""
