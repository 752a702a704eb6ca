"""Which code computes attention? Same numbers, other speed; the formula itself is in model/attention.py."""
