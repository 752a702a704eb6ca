"""Evaluation: scores and pictures of what a model learned. Reads models and data, changes none."""
