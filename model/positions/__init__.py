"""How does the model know where a token stands? RoPE, its scaling to longer texts, and GPT-2's learned positions."""
