"""Parts of the methods that start from a trained model."""
