"""Where does text come from? Local files, datasets of the Hugging Face Hub, and mixes of them."""
