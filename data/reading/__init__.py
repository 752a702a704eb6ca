"""Readers of local files, datasets of the Hugging Face Hub, and mixes of them."""
