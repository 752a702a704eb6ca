"""The model away from the CPU: every backend and mask gives the numbers of the formula, and nothing
stays behind.

On the accelerator of tests/accelerator.py, forward and backward, in a process of its own. And on
`meta`, where tensors have shapes and no numbers, so that reading one raises.
"""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import flex_attention

from data.packing import document_starts
from model.backends.choice import BACKENDS
from model.backends.kernels import lengths_or_mask, sequences
from model.kv_cache import KVCache
from model.variants.caches import StaticCache
from tests import accelerator
from tests.conftest import random_model, tiny_config
from tests.processes import exit_code, print_to

MIXED = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
MASKS = ("plain", "documents", "documents found", "left padding", "right padding", "documents, right padding")
CACHES = ("dynamic cache", "dynamic cache, padding", "static cache", "static cache, padding")
# the others: blocked is for CPUs, and PyTorch has flex for devices that it knows
ANYWHERE = ("eager", "sdpa", "flash", "varlen")


def inputs_of(kind: str, device: str) -> dict[str, torch.Tensor]:
    """Two rows of 24 tokens, masked in one way."""
    generator = torch.Generator().manual_seed(3)
    given = {"input_ids": torch.randint(0, 192, (2, 24), generator=generator)}
    if kind.startswith("documents"):
        given["document_ids"] = torch.randint(0, 5, (2, 24), generator=generator).sort().values
    if kind in ("documents", "documents, right padding"):
        given["document_starts"] = torch.from_numpy(document_starts(given["document_ids"].numpy()))
    if kind.endswith("padding"):
        real = torch.arange(24) < torch.tensor([[20], [24]])
        given["attention_mask"] = real.flip(1) if kind.startswith("left") else real
    return {name: tensor.to(device) for name, tensor in given.items()}


def loss_and_gradients(lm, kind: str, device: str) -> list[torch.Tensor]:
    """A loss in which only real tokens count, and the gradients of all parameters."""
    given = inputs_of(kind, device)
    losses = F.cross_entropy(lm(**given)[:, :-1].transpose(1, 2), given["input_ids"][:, 1:], reduction="none")
    if kind.endswith("padding"):
        losses = torch.where(given["attention_mask"][:, :-1], losses, 0.0)
    loss = losses.sum()
    return [loss.detach(), *torch.autograd.grad(loss, list(lm.parameters()))]


@torch.no_grad()
def read_in_pieces(lm, kind: str, device: str) -> list[torch.Tensor]:
    """The logits of a text that is read with a cache: a part, then several tokens at once, then one
    by one.
    """
    given = inputs_of("left padding" if "padding" in kind else "plain", device)
    ids = given["input_ids"]
    real = given.get("attention_mask")
    is_static = kind.startswith("static")
    cache = StaticCache(lm.config, 2, 24, device, torch.float32) if is_static else KVCache(lm.config)
    logits = []
    for first, end in ((0, 9), (9, 15), (15, 16), (16, 17), (17, 18)):
        seen = None if real is None else real if is_static else real[:, :end]
        logits.append(lm(ids[:, first:end], attention_mask=seen, kv_cache=cache))
    read = torch.cat(logits, dim=1)
    return [read if real is None else read.where(real[:, :18, None], 0.0)]


def compare_on_accelerator(file) -> None:
    """Write {backend, window, mask: the largest error, as a share of the largest entry}."""
    torch.set_num_threads(1)
    print_to(file.with_name("said.txt"))
    accelerator.register()
    BACKENDS.update({name: replace(backend, limits=None) for name, backend in BACKENDS.items()})
    found = {}
    for changes in ({}, MIXED):
        torch.manual_seed(0)
        lm = random_model(tiny_config(**changes, attn_implementation="eager"))
        expected = {kind: loss_and_gradients(lm, kind, "cpu") for kind in MASKS}
        expected |= {kind: read_in_pieces(lm, kind, "cpu") for kind in CACHES}
        with accelerator.Accelerator() as device:
            lm.to(accelerator.NAME)
            device.recording = True
            lm.set_attn_implementation("varlen")
            for kind in MASKS:
                lm(**inputs_of(kind, accelerator.NAME))
            found[f"waits, window {'sliding_window' in changes}"] = device.reads
            device.recording = False
            for name in ANYWHERE:
                lm.set_attn_implementation(name)
                for kind in expected:
                    read = read_in_pieces if kind in CACHES else loss_and_gradients
                    ours = read(lm, kind, accelerator.NAME)
                    pairs = zip((x.cpu() for x in ours), expected[kind], strict=True)
                    errors = [(a - b).abs().max() / b.abs().max() for a, b in pairs]
                    found[f"{name}, window {'sliding_window' in changes}, {kind}"] = float(torch.stack(errors).max())
    file.write_text(json.dumps(found), encoding="utf-8")


@pytest.mark.slow
def test_every_backend_and_mask_gives_the_numbers_of_the_formula(tmp_path):
    code = exit_code(compare_on_accelerator, tmp_path / "found.json")
    assert code == 0, (tmp_path / "said.txt").read_text(encoding="utf-8")[-3000:]
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    # only where it has to look for documents; PyTorch's kernel takes all else from the device
    assert {at for window in (False, True) for *_, at in found.pop(f"waits, window {window}")} == {"find_starts"}
    assert len(found) == 2 * len(ANYWHERE) * (len(MASKS) + len(CACHES))
    # float32; a wrong one is ~1
    assert {where: error for where, error in found.items() if not error < 1e-4} == {}


@pytest.fixture
def meta(monkeypatch):
    """`meta` as a device to train on: PyTorch has no autocast there, and FlexAttention asks for
    devices by name.
    """
    asked = torch.is_autocast_enabled
    autocast = torch.autocast
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind != "meta" and asked(kind))
    monkeypatch.setattr(
        torch, "autocast", lambda kind, *a, **k: nullcontext() if kind == "meta" else autocast(kind, *a, **k)
    )
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    for name, backend in BACKENDS.items():
        monkeypatch.setitem(BACKENDS, name, replace(backend, limits=None))
    return "meta"


@pytest.mark.parametrize("changes", [{}, MIXED], ids=["full", "windows"])
@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "mine"])  # code of a user
def test_neither_a_step_nor_reading_with_a_cache_asks_the_device_for_a_number(meta, name, changes):
    """Forward and backward in every backend under every mask. A mask that is made from numbers, or
    left on the CPU, raises.
    """
    lm = random_model(tiny_config(**changes, attn_implementation=name)).to(meta)
    for kind in MASKS:
        looks = kind == "documents found" and BACKENDS[name].mask in (sequences, lengths_or_mask)
        with pytest.raises(RuntimeError, match="item.* meta") if looks else nullcontext():
            loss, *gradients = loss_and_gradients(lm.train(), kind, meta)
            assert {x.device.type for x in (loss, *gradients)} == {"meta"}
            assert [x.shape for x in gradients] == [p.shape for p in lm.parameters()]
    (logits,) = read_in_pieces(lm.eval(), "dynamic cache, padding", meta)
    assert (logits.device.type, logits.shape) == ("meta", (2, 18, 192))
