"""How much memory does a training step need? One micro-batch is measured, without computing it.

The real model, the real loss and the real optimizers run on PyTorch's fake tensors: these have a shape, a data type and
a device, but no numbers and no memory. So it takes a second on any machine, whatever the size, and every tensor that
the step makes is counted from the moment it is made to the moment when nothing holds it. Not counted: what an operation
needs inside, the fragments that an allocator leaves, and what torch.compile saves (it keeps less).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model import LanguageModel, experts, loss
from model.adapters.lora import add_adapters
from model.attention import repeat_kv
from model.backends.choice import BACKENDS, Backend, Situation, choose_attention
from model.masks import boolean_mask
from train.config import RunConfig
from train.optimizer import Muon, build_optimizers

USABLE_SHARE = 0.9  # of the memory: the rest is for the CUDA context and for fragments
WRITTEN_OUT = ("eager", "sdpa_math")  # attention that keeps every weight for the backward pass, on any device
MOST_CHUNKS = 96  # of the loss: more than 49,152 tokens are measured as if the chunks were larger, or it takes minutes
# attention that needs no mask matrix for documents and windows
UNMASKED = ("flash", "flash3", "flash4", "flex", "varlen")


def largest_micro_batch(run: RunConfig, memory: float, *, half: bool, device: str) -> int:
    """The most rows whose step fits into USABLE_SHARE of `memory` bytes; 0 if not even one does.

    Measured at two sizes, because every row adds the same; few rows only where more do not fit, because the loss works
    in chunks (model/loss.py).
    """
    usable, chunk = USABLE_SHARE * memory, loss.CHUNK.get(device, loss.CHUNK_ELSEWHERE)
    chunk_rows = -(-chunk // run.data.sequence_length)

    def needed(rows: int) -> StepMemory:
        return step_memory(run, rows, half=half, device=device)

    low, high = 2 * chunk_rows, 8 * chunk_rows  # two chunks exist side by side, a third one changes nothing
    below, above = needed(low), needed(high)
    if below.passes > usable:
        low, high, below, above = 1, low, needed(1), below
    if max(below.passes, below.update) > usable:
        return 0
    a_row = (above.passes - below.passes) / (high - low)
    return low + int((usable - below.passes) / a_row)


@dataclass(frozen=True)
class StepMemory:
    """Bytes. The first three are there all the time; a step holds `fullest` at once.

    activations: what one micro-batch keeps for the backward pass. passes, update: the fullest moments of forward and
    backward (beside the gradients of the micro-batches before), and of the optimizers' step.
    """

    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    passes: int
    update: int

    @property
    def fullest(self) -> int:
        return max(self.passes, self.update)


def step_memory(run: RunConfig, rows: int, *, half: bool, device: str) -> StepMemory:
    """Measure a step of micro-batches of `rows` rows. run.model has a vocabulary.

    half: 16-bit autocast over float32 weights, else float32. device: what is planned for; it need not be here.
    Every layer of a kind adds the same, so few layers are measured, however deep the model is.
    """
    layers = list(zip(run.model.layer_types or [], run.model.has_experts, strict=True))
    kinds = sorted(set(layers))
    if len(layers) <= len(kinds) + 1:
        return _measured(run, rows, layers, half, device)
    found = least = _measured(run, rows, kinds, half, device)
    for kind in kinds:
        a_layer = _measured(run, rows, [*kinds, kind], half, device)
        times = layers.count(kind) - 1
        found = StepMemory(
            *(now + times * (more - few) for now, more, few in zip(*map(astuple, (found, a_layer, least)), strict=True))
        )
    return found


def _measured(run: RunConfig, rows: int, layers: list[tuple[Any, bool]], half: bool, device: str) -> StepMemory:
    """The same with these layers (type, whether it has experts), each of them measured."""
    types, dense = [kind for kind, _ in layers], [i for i, (_, has_experts) in enumerate(layers) if not has_experts]
    fewer = {"num_hidden_layers": len(layers), "layer_types": types, "mlp_only_layers": dense, "decoder_sparse_step": 1}
    run = run.model_copy(update={"model": run.model.model_copy(update=fewer)})
    with ExitStack() as stack:
        most = max(loss.CHUNK["cpu"], rows * run.data.sequence_length // MOST_CHUNKS)
        stack.enter_context(mock.patch.dict(loss.CHUNK, cpu=most))
        stack.enter_context(FakeTensorMode())
        held = stack.enter_context(Held())
        stack.enter_context(mock.patch.object(F, "grouped_mm", grouped_mm))
        stack.enter_context(mock.patch.object(experts, "multiple_of_rows", return_value=1))  # no number to read it from
        lm = LanguageModel(run.model).train()
        if run.lora is not None:
            add_adapters(lm, run.lora)
        lm.set_activation_checkpointing(run.train.activation_checkpointing)
        optimizers = build_optimizers(lm, run.train.optimizer)
        trained = [parameter for parameter in lm.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        before = held.now
        for optimizer in optimizers:
            if isinstance(optimizer, Muon) and device == "cuda":
                optimizer.dtype = torch.bfloat16
            optimizer.step()  # makes its state
        lasting = held.most = held.now
        ids = torch.zeros(rows, run.data.sequence_length, dtype=torch.long)
        with _attention(lm, run, half, device), _as_on(device), torch.autocast("cpu", torch.bfloat16, enabled=half):
            # not lm itself, which looks at the ids: these have no values
            hidden, _ = lm.model(ids, None, ids if run.data.isolate_documents else None, None, None)
            loss_sum = loss.cross_entropy_sum(hidden.flatten(0, 1), lm.lm_head.weight, ids.flatten())
            del hidden
            activations = held.now - lasting
            loss_sum.backward()
        passes, held.most = held.most, 0
        for optimizer in optimizers:
            optimizer.step()
        weights, gradients = (sum(x.nbytes for x in some) for some in (lm.parameters(), trained))
        return StepMemory(weights, gradients, lasting - before, activations, passes, held.most)


class Held(TorchDispatchMode):
    """Counts the bytes of every storage, from the operation that makes it until nothing holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not isinstance(tensor, Tensor) or (key := tensor.untyped_storage()._cdata) in self._known:
                continue
            storage = tensor.untyped_storage()
            self._known.add(key)
            self.now += storage.nbytes()
            weakref.finalize(storage, self._gone, key, storage.nbytes())
        self.most = max(self.most, self.now)
        return out

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@contextmanager
def _as_on(device: str) -> Iterator[None]:
    """The fake tensors are always a CPU's; where our own code treats that one apart, treat it as `device`."""
    if device == "cpu":
        yield
        return
    # a norm's own backward pass (model/norm.py) is for a CPU that does not compile; a chunk of the loss is larger
    with (
        mock.patch.object(torch.compiler, "is_compiling", return_value=True),
        mock.patch.dict(loss.CHUNK, cpu=max(loss.CHUNK["cpu"], loss.CHUNK_ELSEWHERE)),
    ):
        yield


@contextmanager
def _attention(lm: LanguageModel, run: RunConfig, half: bool, device: str) -> Iterator[None]:
    """The backend that the run takes; on a GPU, in place of a fused kernel, a function that keeps what these keep."""
    name = run.model.attn_implementation
    if device == "cpu" or name in WRITTEN_OUT:
        dtype = torch.bfloat16 if half else torch.float32
        model = run.model
        sizes = (model.head_size, model.num_key_value_groups)
        here = Situation("cpu", dtype, *sizes, gradients=True, value_dim=model.value_size)
        lm.set_attn_implementation(choose_attention(here)[0] if name == "auto" else name)
        yield
        return
    masked = name not in UNMASKED and not (name == "auto" and device == "cuda")
    backend = Backend(fused_kernel, boolean_mask if masked else lambda spec: None)
    with mock.patch.dict(BACKENDS, {"a fused kernel": backend}):
        lm.set_attn_implementation("a fused kernel")
        yield


def fused_kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """What a flash kernel makes and keeps, in the signature of a backend: its inputs, the output, a number a query."""
    dtype, groups = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else v.dtype, q.shape[1]
    inputs = [x.to(dtype) for x in (q, k, v)]
    if mask is not None:  # then keys and values are repeated for every query head, and the mask is added to the scores
        inputs[1:] = [repeat_kv(x, groups // x.shape[1]) for x in inputs[1:]]
        inputs.append(mask.to(dtype))
    return _Fused.apply(*inputs).to(v.dtype)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
        out, log_sums = q.new_empty(*q.shape[:-1], v.shape[-1]), torch.empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, *mask, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, _out, _log_sums = ctx.saved_tensors
        made = tuple(torch.empty_like(x) for x in inputs[:3])
        return made + (None,) * len(inputs[3:])  # the mask has none


def grouped_mm(x: Tensor, matrices: Tensor, offs: Tensor) -> Tensor:
    """What the products of experts make and keep: PyTorch has fake ones for bfloat16 only."""
    return _Grouped.apply(x, matrices)


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrices: Tensor) -> Tensor:
        ctx.save_for_backward(x, matrices)
        return x.new_empty(len(x), matrices.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)
