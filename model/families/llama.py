"""Llama: no QK-norm, no sliding window; the widest support elsewhere (llama.cpp, vLLM, …)."""

from __future__ import annotations

from model.families.family import Family

# Touvron et al. 2023 (arXiv 2302.13971); Grattafiori et al. 2024 (2407.21783).
LLAMA = Family(
    "llama", "LlamaForCausalLM", needs={"qk_norm": False}, words=("attention_bias", "mlp_bias", "hidden_act")
)
