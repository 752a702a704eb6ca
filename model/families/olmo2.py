"""OLMo 2: what comes out of attention and of the feed-forward part is normalised, and all heads' queries as one."""

from __future__ import annotations

from model.families.family import Family

# Walsh et al. 2025, "2 OLMo 2 Furious" (arXiv 2501.00656).
OLMO2 = Family(
    "olmo2",
    "Olmo2ForCausalLM",
    needs={"qk_norm": "whole", "norm_position": "after"},
    words=("attention_bias",),
    defaults={"rms_norm_eps": 1e-5},
)
