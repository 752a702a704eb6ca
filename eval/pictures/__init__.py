"""Pictures of heads and curves, in one style."""
