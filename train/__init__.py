"""How does it learn? The loop, and everything that only training needs."""
