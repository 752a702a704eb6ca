"""Other attention, experts, adapters, rounded weights, a server's cache: parts that a plain model does not load."""
