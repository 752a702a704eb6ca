"""How does a model learn with few numbers of its own? LoRA's adapters, beside frozen weights, and their files."""
