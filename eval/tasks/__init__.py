"""How well does it do on a test set? Minimal pairs, multiple choice, perplexity of a text."""
