"""An accelerator made of Python, on any machine: its tensors are not on the CPU, and what they
compute is real.

A tensor of device `accel` holds one of the CPU, on which every operator runs. So a model trains on
it and gets the numbers of a CPU. Two things are as on a GPU: a tensor of the CPU cannot be mixed
in, and a number comes to the CPU by a copy, for which the program has to wait. `Accelerator.reads`
lists these waits, with the function that caused each.

PyTorch keeps a device for the rest of the process, with a thread for gradients: use it in a process
of its own.
"""

from __future__ import annotations

import traceback
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from tests.varlen_kernel import KERNELS

ROOT = Path(__file__).parents[1]
NAME = "accel"
aten = torch.ops.aten
ONE_NUMBER = {"_local_scalar_dense", "equal", "is_nonzero", "item"}
# the shape of the result depends on the numbers
SHAPE = {"nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive", "bincount", "repeat_interleave"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def register() -> None:
    """Make the device known to this process.

    Under autocast its matrix products are in 16 bits, as on a GPU.
    """
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    # a tied matrix stays one, as on its way to a GPU
    torch.__future__.set_swap_module_params_on_conversion(True)
    below = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    products = torch.library.Library("aten", "IMPL")

    def in_16_bits(product, *arguments):
        with torch._C._ExcludeDispatchKeyGuard(below):
            dtype = torch.get_autocast_dtype(NAME)
            return product(*[x.to(dtype) if isinstance(x, Tensor) else x for x in arguments])

    for name in ("mm", "bmm", "matmul", "linear", "addmm", "baddbmm"):
        products.impl(name, partial(in_16_bits, getattr(aten, name)), "AutocastPrivateUse1")
    register.kept = (everything, products)  # type: ignore[attr-defined]


class OnDevice(Tensor):
    """A tensor of the accelerator. inner: its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor):
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=torch.device(NAME, 0)
        )

    def __init__(self, inner: Tensor):
        self.inner = inner

    def tolist(self) -> list:
        """As PyTorch does it for a GPU: copy, then read."""
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"OnDevice({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return Accelerator.active.compute(func, args, kwargs or {})


class Accelerator(TorchDispatchMode):
    """While it is active there is an accelerator. recording: write down who waits for it, in
    `reads`.

    reads: (operator, file, function) of each wait; the innermost place in Headlight's own code.
    """

    active: Accelerator

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, str, str]] = []
        self.recording = False
        Accelerator.active = self

    def __enter__(self) -> Accelerator:
        # torch.tensor(1.0, device=…) makes it on the CPU and copies it
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(False)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.compute(func, args, kwargs or {})

    def compute(self, func, args, kwargs):
        """Run an operator on the CPU's tensors inside; the result is on the device where operands
        or `device` are.
        """
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        there = any(isinstance(x, OnDevice) for x in tensors)
        wanted = kwargs.get("device")
        if not there and (wanted is None or torch.device(wanted).type != NAME):
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if there:
            self.note_wait(func, name, args, wanted)
        is_copy = name in ("copy_", "_to_copy")
        if not is_copy and there and any(not isinstance(x, OnDevice) and x.dim() for x in tensors):
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found {NAME} and cpu")
        inner_args, inner_kwargs = tree_map_only(OnDevice, lambda x: x.inner, (args, kwargs))
        if wanted is not None:
            inner_kwargs["device"] = "cpu"
        out = KERNELS.get(func, func)(*inner_args, **inner_kwargs)
        to_cpu = wanted is not None and torch.device(wanted).type == "cpu"
        if name == "copy_" or to_cpu:
            return args[0] if name == "copy_" else out
        wrapped = tree_map_only(Tensor, OnDevice, out)
        return return_and_correct_aliasing(func, args, kwargs, wrapped) if there else wrapped

    def note_wait(self, func, name: str, args, wanted) -> None:
        """Record an operator after which the CPU has to wait for the device."""
        waits = name in ONE_NUMBER or (name in SHAPE and func is not aten.repeat_interleave.Tensor)
        if name in INDEXING:
            waits = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
        elif name == "_to_copy":
            waits = wanted is not None and torch.device(wanted).type == "cpu"
        elif name == "copy_":
            waits = isinstance(args[1], OnDevice) and not isinstance(args[0], OnDevice)
        if waits and self.recording:
            self.reads.append((name, *_caller()))


def _caller() -> tuple[str, str]:
    """The innermost line of our own code: (file, function)."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if path.is_relative_to(ROOT) and ".venv" not in path.parts and path != Path(__file__):
            return str(path.relative_to(ROOT)), frame.name
    return "?", "?"
