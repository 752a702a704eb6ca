"""What does one key change? One run for each of its values and seeds, then their comparison."""
