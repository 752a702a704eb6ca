"""What does a model do with texts longer than those of its training? docs/long_context.md."""
