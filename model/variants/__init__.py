"""Parts that a plain model does not load: latent attention, experts, adapters, other caches."""
