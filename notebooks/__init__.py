"""Notebooks, each with questions, figures and checks. Each begins with `start`."""
