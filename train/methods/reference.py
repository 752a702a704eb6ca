"""A second model beside the one that is trained: frozen, in evaluation mode, on the same device.

DPO and GRPO measure how far the model has moved from a reference. A distillation has a teacher.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from configs.command import InputError
from configs.files import read_checkpoint
from data.tokenizer import Tokenizer, load_tokenizer
from eval.language_modeling import evaluating
from model import LanguageModel, load
from model.variants.lora import without_adapters
from model.variants.surgery import add_rows
from train.config import RunConfig
from train.machine.device import Device


def open_reference(
    config: RunConfig,
    tokenizer: Tokenizer,
    device: Device,
    key: Literal["init_from", "distill.teacher"] = "init_from",
) -> LanguageModel:
    """Load the model that `key` of the config names. Call it under torch.no_grad.

    Raises InputError if it cannot be loaded, has another tokenizer, or reads only shorter rows.
    """
    path = config.init_from
    if config.distill is not None and key == "distill.teacher":
        path = config.distill.teacher
    assert path is not None  # check_script
    if config.train.parallel != "ddp":
        # The losses multiply with lm_head.weight themselves, outside of FSDP2's forward pass.
        raise InputError(
            f"train.parallel: {config.train.parallel} splits the head, and this loss needs all of "
            "it on each GPU: use ddp"
        )
    its_tokenizer, lm = read_checkpoint(
        path, lambda directory: (load_tokenizer(directory), load(directory))
    )
    added = tokenizer.vocab_size - lm.lm_head.out_features
    if added < 0 or tokenizer.tokens_beyond(its_tokenizer) is None:
        raise InputError(
            f"{key}: {path} has another tokenizer than this run: the same ids mean other text"
        )
    # This run has new tokens. A model that starts from this one gets the same rows for them.
    if added:
        add_rows(lm, tokenizer.vocab_size)
    length = config.data.sequence_length
    longest = lm.config.max_position_embeddings
    if length > longest:
        raise InputError(
            f"{key}: {path} reads {longest} tokens at once: lower data.sequence_length ({length})"
        )
    lm = lm.to(device.device).eval().requires_grad_(False)
    lm.set_attn_implementation(device.attention)
    return lm


@contextmanager
def as_reference(reference: LanguageModel | None, lm: LanguageModel) -> Iterator[LanguageModel]:
    """Yield the reference, without gradients. None: it is lm with its adapters switched off."""
    if reference is not None:
        with torch.no_grad():
            yield reference
    else:
        # `evaluating` switches dropout off and on again: lm is the model that trains.
        with torch.no_grad(), evaluating(lm), without_adapters(lm):
            yield lm
