"""How does a model become files? The checkpoint, a Hugging Face model directory, and its model card."""
