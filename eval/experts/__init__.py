"""Which expert does a token go to, and does the router choose well? For models with a mixture of experts."""

from eval.experts.routing import Routing, loss_with, routers, routing

__all__ = ["Routing", "loss_with", "routers", "routing"]
