"""Training: the loop, and everything that only training needs."""
