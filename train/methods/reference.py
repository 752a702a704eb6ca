"""A second model beside the one that is trained: frozen, in evaluation mode, on the same device.

The reference of DPO and GRPO says how far the model has moved; the teacher of a distillation says
where to go.
"""

from __future__ import annotations

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
    """The model that `key` of the config names, to be asked and never trained. Call it under
    torch.no_grad.

    Raises InputError for what cannot be loaded, for another tokenizer than the run's (the same ids
    would stand for other text), and for rows longer than it can read.
    """
    path = (
        config.distill.teacher if config.distill and key == "distill.teacher" else config.init_from
    )
    assert path is not None  # check_script
    if (parallel := config.train.parallel) != "ddp":
        raise InputError(
            f"train.parallel: {parallel} shares out the head, and this loss needs it whole: use ddp"
        )
    its_tokenizer, lm = read_checkpoint(
        path, lambda directory: (load_tokenizer(directory), load(directory))
    )
    added = tokenizer.vocab_size - lm.lm_head.out_features
    if added < 0 or tokenizer.tokens_beyond(its_tokenizer) is None:
        raise InputError(
            f"{key}: {path} has another tokenizer than this run: the same ids stand for other text"
        )
    if added:  # as in the model that starts from this one
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
    """The reference in evaluation mode, without gradients.

    None: it is lm without its adapters, in one copy.
    """
    if reference is not None:
        with torch.no_grad():
            yield reference
    else:
        with torch.no_grad(), evaluating(lm), without_adapters(lm):
            yield lm
