"""How do you look around in all heads? One self-contained page that shows them over training."""
