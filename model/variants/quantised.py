"""Weights of 8 or 4 bits, for reading only. Numbers and kernels are torchao's.

    int8   a scale for each row of a matrix; the model computes in its own dtype
    int4   a scale and a zero point for 32 numbers of a row; the model becomes bfloat16

Linear layers of the blocks and an untied head become small. Embedding, norms, experts and the
matrix that latent attention reads past its module do not. A small model does not get faster.
"""

import logging
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from model.transformer import LanguageModel
from model.variants.lora import adaptable

# In int4 so many numbers share a scale.
GROUP = 32
# PyTorch's int4 kernel takes a multiple of so many rows.
ROWS = 16


def quantise_weights(lm: LanguageModel, kind: str) -> None:
    """Replace the weights of linear layers in place, as int8 or int4, which cannot be trained.

    Raises ImportError without torchao, and ValueError, before anything is changed.
    """
    if find_spec("torchao") is None:
        raise ImportError("torchao is not installed: pip install 'torchao>=0.18'")
    if lm.adapters is not None:
        remedy = "merge them first (python -m model.export RUN --to merged)"
        raise ValueError(f"this model has adapters: {remedy}")
    if kind == "int4" and lm.device.type != "cpu":
        raise ValueError("its kernel is for --device cpu: use int8 on a GPU")
    layers = quantisable(lm, kind)
    if not layers:
        sizes = f"int4 needs a multiple of {GROUP} inputs and of {ROWS} outputs"
        raise ValueError(f"this model has no linear layer that can be quantised: {sizes}")
    for name in ("torch.utils._pytree", "torchao"):  # on import they warn of missing GPU kernels
        logging.getLogger(name).setLevel(logging.ERROR)
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    config = Int8WeightOnlyConfig()
    lm.requires_grad_(False)
    if kind == "int4":  # in 0.18 Int4WeightOnlyConfig, outside `prototype`, has no kernel for CPUs
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        config = PrototypeInt4WeightOnlyConfig(group_size=GROUP)
        # in float32 PyTorch's kernel took a hundred times as long (FINDINGS.md#bits)
        lm.to(torch.bfloat16)
    quantize_(lm, config, filter_fn=lambda module, name: name in layers)


def quantisable(lm: LanguageModel, kind: str) -> dict[str, nn.Linear]:
    """Return the layers that become small, by name."""
    layers = adaptable(lm)
    if not lm.config.tie_word_embeddings:  # a tied matrix would be kept twice
        layers["lm_head"] = lm.lm_head
    if kind == "int8":
        return layers

    def fits(layer: nn.Linear) -> bool:
        return layer.in_features % GROUP == 0 and layer.out_features % ROWS == 0

    return {name: layer for name, layer in layers.items() if fits(layer)}


def weight_bytes(lm: LanguageModel) -> int:
    """Return the bytes of all weights, scales included; a shared matrix counts once."""

    def bytes_of(tensor: Tensor) -> int:
        if not hasattr(tensor, "__tensor_flatten__"):
            return tensor.nbytes
        # torchao's are made of several
        return sum(bytes_of(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])

    return sum(map(bytes_of, lm.parameters()))
