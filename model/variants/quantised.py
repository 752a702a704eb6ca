"""Weights of 8 or 4 bits, for reading only: fewer bytes to keep. Numbers and kernels are torchao's, none are ours.

    int8   one scale for each row of a matrix; what is computed stays in the model's own dtype
    int4   a scale and a zero point for every 32 numbers of a row. The model becomes bfloat16, because in float32
           PyTorch's kernel took a hundred times as long (FINDINGS.md#bits)

Linear layers of the blocks and an untied head become small. Embedding, norms, experts and the matrix that latent
attention reads past its module stay as they are. A model that is small itself does not get faster: docs/serving.md.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from model.transformer import LanguageModel
from model.variants.lora import adaptable

GROUP = 32  # numbers that share a scale in int4
ROWS = 16  # PyTorch's int4 kernel takes a multiple of these


def quantise_weights(lm: LanguageModel, kind: str) -> None:
    """Replace the weights of linear layers, in place; the model can no longer be trained or saved. kind: int8 | int4.

    Raises ImportError without torchao, and ValueError for a model with adapters, one without a layer that can be
    quantised, and int4 on a GPU; then nothing was changed.
    """
    if find_spec("torchao") is None:
        raise ImportError("torchao is not installed: pip install 'torchao>=0.18'")
    if lm.adapters is not None:
        raise ValueError("this model has adapters: merge them first (python -m model.export RUN --to merged)")
    if kind == "int4" and next(lm.parameters()).device.type != "cpu":
        raise ValueError("its kernel is for --device cpu: use int8 on a GPU")
    if not (chosen := quantisable(lm, kind)):
        sizes = f"int4 needs a multiple of {GROUP} inputs and of {ROWS} outputs"
        raise ValueError(f"this model has no linear layer that can be quantised: {sizes}")
    for name in ("torch.utils._pytree", "torchao"):  # on import they say which kernels for GPUs they do without
        logging.getLogger(name).setLevel(logging.ERROR)
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    config = Int8WeightOnlyConfig()
    lm.requires_grad_(False)
    if kind == "int4":  # Int4WeightOnlyConfig, outside of `prototype`, has no kernel for CPUs in 0.18
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        config = PrototypeInt4WeightOnlyConfig(group_size=GROUP)
        lm.to(torch.bfloat16)
    quantize_(lm, config, filter_fn=lambda module, name: name in chosen)


def quantisable(lm: LanguageModel, kind: str) -> dict[str, nn.Linear]:
    """The layers that become small, by name."""
    layers = adaptable(lm)
    if not lm.config.tie_word_embeddings:  # a tied matrix would be there twice
        layers["lm_head"] = lm.lm_head
    if kind == "int8":
        return layers
    return {name: x for name, x in layers.items() if x.in_features % GROUP == 0 and x.out_features % ROWS == 0}


def weight_bytes(lm: LanguageModel) -> int:
    """Bytes of all weights, scales included; a shared matrix counts once."""

    def bytes_of(tensor: Tensor) -> int:
        if not hasattr(tensor, "__tensor_flatten__"):
            return tensor.nbytes
        return sum(bytes_of(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])  # torchao's are several

    return sum(map(bytes_of, lm.parameters()))
