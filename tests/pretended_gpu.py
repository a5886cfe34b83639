"""A pretended CUDA device: tensors that say `cuda:0`, keep their numbers on the processor, and are as strict as CUDA's.

Mixing them with tensors of the processor (but 0-d ones) raises what CUDA raises, as does `.numpy()`; whatever waits for
the device (`.item()`, `.cpu()`, `bool()`, nonzero) is counted by the line of this project that asked for it. Whole
commands run on it, inside `with pretended_gpu() as gpu:`; `gpu.waits` is a Counter of "file:line kind".

Limits: no autocast (torch takes these tensors for those of `meta`), so every precision computes in float32; no streams,
memory, pinning, nccl or kernels of CUDA. Private to the pinned torch: `_make_subclass(device_for_backend_keys=)`,
`cuda._lazy_init`, `_group_tensors_by_device_and_dtype`; tests that use it are skipped with another (`needs_its_torch`).
"""

import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils as foreach
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
needs_its_torch = pytest.mark.skipif(
    not torch.__version__.startswith("2.14."), reason="the pretended GPU is made of private parts of torch 2.14"
)
aten = torch.ops.aten
CROSSES = {aten.copy_.default, aten._to_copy.default, aten.to.device, aten.is_pinned.default}
WAITS = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten.is_nonzero.default, aten._unique2.default, aten.bincount.default, aten.repeat_interleave.Tensor,
}  # fmt: skip
INDEXED = {
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}  # fmt: skip
"""Operations that take indices of the processor for tensors of CUDA, and copy them."""


class OnGpu(torch.Tensor):
    """A tensor of the pretended device; `inner` has its numbers."""

    @staticmethod
    def __new__(cls, inner):
        # As FakeTensor does: meta to the autograd engine and to guards, which would ask the driver for a device.
        shell = torch.empty_strided(inner.size(), inner.stride(), dtype=inner.dtype, device="meta")
        made = torch.Tensor._make_subclass(cls, shell, False, device_for_backend_keys=GPU)
        made.inner = inner
        return made

    device, is_cuda, is_meta = property(lambda self: GPU), property(lambda self: True), property(lambda self: False)

    def set_data(self, value):
        torch.Tensor.data.__set__(self, value)
        self.inner = value.inner

    data = property(lambda self: self.detach(), set_data)

    def __repr__(self):
        return f"OnGpu({self.inner})"

    def numpy(self, *, force=False):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host")

    def __array__(self, *_, **__):
        return self.numpy()

    def tolist(self):
        STATE.note("tolist")
        return self.inner.tolist()

    def is_pinned(self, device=None):
        return False

    def data_ptr(self):
        return self.inner.data_ptr()

    def untyped_storage(self):
        return self.inner.untyped_storage()

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            copied = OnGpu(self.inner.detach().clone()).requires_grad_(self.requires_grad)
            if getattr(self, "_is_param", False):
                copied._is_param = True
            memo[id(self)] = copied
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


class State:
    """Waits for the device so far, by line."""

    def __init__(self):
        self.waits = Counter()

    def note(self, kind):
        frame = sys._getframe(1)
        while frame and ("site-packages" in (path := frame.f_code.co_filename) or path.endswith("pretended_gpu.py")):
            frame = frame.f_back
        if frame:
            self.waits[f"{'/'.join(path.split('/')[-3:])}:{frame.f_lineno} {kind}"] += 1


STATE = State()


@torch.inference_mode(False)  # shells that are inference tensors cannot be viewed
@torch.no_grad()
def run(func, args, kwargs):
    """Compute an operation on the numbers of its tensors, where CUDA would."""
    flat, spec = tree_flatten((args, kwargs))
    tensors = [each for each in flat if isinstance(each, torch.Tensor)]
    on_gpu = [each for each in tensors if isinstance(each, OnGpu)]
    target = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    if target is not None and target.type == "meta" and on_gpu:  # C++ copied it from a shell
        target = GPU
    if on_gpu and func not in CROSSES | INDEXED and any(not isinstance(t, OnGpu) and t.dim() > 0 for t in tensors):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (when"
            f" checking arguments of {func})"
        )
    if on_gpu and func in WAITS:
        STATE.note(func.__name__.split(".")[0])
    if (
        on_gpu
        and func in INDEXED
        and any(isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8) for each in (args[1] or ()))
    ):
        STATE.note("boolean index")
    back = {id(each.inner): each for each in on_gpu}
    args, kwargs = tree_unflatten([each.inner if isinstance(each, OnGpu) else each for each in flat], spec)
    if "device" in kwargs and target is not None and target.type == "cuda":
        kwargs = {**kwargs, "device": CPU}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    out = func(*args, **kwargs)
    to_gpu = bool(on_gpu) if target is None else target.type == "cuda"
    if func in (aten._to_copy.default, aten.copy_.default):
        to_gpu = isinstance(flat[0], OnGpu) if func is aten.copy_.default or target is None else target.type == "cuda"
        source = flat[0] if func is aten._to_copy.default else flat[1]
        if isinstance(source, OnGpu) and not to_gpu:
            STATE.note("copy to the processor")
    if not to_gpu:
        return out
    return tree_map(lambda t: back[id(t)] if id(t) in back else OnGpu(t) if isinstance(t, torch.Tensor) else t, out)


class Factories(TorchDispatchMode):
    """Makes tensors on the pretended device where a function without one is asked for them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def numbered(value):
    """Return `cuda` with its number: torch would ask the driver for it."""
    return GPU if isinstance(value, str | torch.device) and str(value) == "cuda" else value


class Numbered(TorchFunctionMode):
    """Names the device by its number, and answers for operations that C++ computes by the shell's device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        kwargs = {name: numbered(value) for name, value in (kwargs or {}).items()}
        first = args[0] if args and isinstance(args[0], OnGpu) else None
        if first is not None and func is torch.Tensor.device.__get__:
            return GPU
        if first is not None and func is torch.Tensor.is_cuda.__get__:
            return True
        if first is not None and func is torch.Tensor.data.__set__:
            first.inner = args[1].inner
        if func in (torch.where, torch.Tensor.where) and any(isinstance(value, OnGpu) for value in args):
            kind = next(v.dtype for v in args[::-1] if isinstance(v, torch.Tensor) and v.dtype != torch.bool)
            args = [v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=kind) for v in args]
        if first is not None and func is torch.nn.functional.one_hot:
            classes = args[1] if len(args) > 1 else kwargs["num_classes"]
            zeros = torch.zeros(*first.shape, classes, dtype=torch.int64, device=GPU)
            return zeros.scatter_(-1, first[..., None], 1)
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == GPU:  # C++ would ask the driver
            return func(*args, **{**kwargs, "device": CPU}).to(GPU)
        if func is torch.Tensor.cuda:
            return args[0].to(GPU)
        return func(*map(numbered, args), **kwargs)


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Compute what torch's attention does, in products and a softmax."""
    if q.device.type != "cuda":
        return ATTENTION(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    weights = (q @ k.mT * (scale or q.size(-1) ** -0.5)).softmax(dim=-1).to(v.dtype)
    return torch.nn.functional.dropout(weights, dropout_p) @ v


ATTENTION = torch.nn.functional.scaled_dot_product_attention
GROUPED = torch._C._group_tensors_by_device_and_dtype


def on_one_device(lists, with_indices=False):
    """Group tensors by type; C++ sees the shell's device."""
    return {(GPU, kind): value for (_, kind), value in GROUPED(lists, with_indices).items()}


@contextmanager
def pretended_gpu(count=1):
    """A machine with so many GPUs, of which the first computes; gives the State that counts."""
    global STATE
    STATE = State()
    generators = tuple(torch.Generator() for _ in range(count))
    properties = SimpleNamespace(major=9, minor=0, name="pretended", total_memory=2**36, multi_processor_count=132)
    patches = {
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.device_count": lambda: count,
        "torch.cuda._lazy_init": lambda: None,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.set_device": lambda device: None,
        "torch.cuda.synchronize": lambda device=None: STATE.note("synchronize"),
        "torch.cuda.get_device_name": lambda device=None: "pretended",
        "torch.cuda.get_device_properties": lambda device=None: properties,
        "torch.cuda.is_bf16_supported": lambda including_emulation=True: True,
        "torch.cuda.max_memory_allocated": lambda device=None: 0,
        "torch.cuda.reset_peak_memory_stats": lambda device=None: None,
        "torch.cuda.manual_seed_all": lambda seed: [each.manual_seed(seed) for each in generators],
        "torch.cuda.default_generators": generators,
        "torch.Tensor.pin_memory": lambda self, device=None: self,
        "torch.accelerator.current_device_index": lambda: 0,
        "torch.accelerator.set_device_index": lambda device: None,
        "torch.nn.functional.scaled_dot_product_attention": attention,
        "torch.optim.Optimizer._accelerator_graph_capture_health_check": lambda self: None,
        "torch._C._group_tensors_by_device_and_dtype": on_one_device,
    }
    precision = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    with ExitStack() as stack:
        for name, value in patches.items():
            stack.enter_context(mock.patch(name, value))
        foreach._foreach_supported_types.append(OnGpu)
        stack.callback(foreach._foreach_supported_types.remove, OnGpu)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        torch.__future__.set_swap_module_params_on_conversion(True)  # `.data =` would lose the class of a parameter
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
        stack.callback(setattr, torch.backends.cudnn, "allow_tf32", precision[1])
        stack.callback(torch.set_float32_matmul_precision, precision[0])
        stack.enter_context(Factories())
        stack.enter_context(Numbered())
        yield STATE
