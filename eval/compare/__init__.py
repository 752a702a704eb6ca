"""Which of these runs is better, and at what? Tables and figures of several runs side by side."""
