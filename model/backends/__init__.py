"""Code that computes attention: which there is, and which serves where (choice.py), and what it does (kernels.py)."""
