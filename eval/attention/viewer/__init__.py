"""One self-contained page that shows every head over training."""
