"""A second device without a GPU: tensors that say ``gpu:0``, compute on the CPU, and refuse to meet CPU tensors.

``gpu`` is PyTorch's spare backend (PrivateUse1), so that the autograd engine runs on it. A :class:`DeviceTensor` wraps
a CPU tensor: its values are real, and ``.item()``, branches and whole fits work. :class:`Emulation` makes factories and
copies return such tensors and checks every operation as CUDA does:

- all tensors of one operation are on one device, but for CPU tensors without dimensions, CPU indices into a tensor on
  the device, and copies;
- a random generator is of the device of the tensor that it fills;
- no operation has only a nondeterministic kernel on CUDA (the documentation of torch.use_deterministic_algorithms).

It counts operations, copies between the devices, and reads that wait for the device. What it cannot see: cuDNN's
engines, speed, memory, whether equal runs give equal bits, and code behind ``device.type == "cuda"``.

Importing this module registers the backend, which has to happen before the first backward pass of a process and cannot
be taken back: use it in a process of its own. Part of this is private API, written against torch 2.14.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default, aten._foreach_copy_.default}
INDEXED = {
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}
READS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default, aten.masked_select.default}
# Of the operations that such networks could use those that no setting makes deterministic on CUDA.
NONDETERMINISTIC = (
    "adaptive_avg_pool2d_backward",
    "adaptive_max_pool2d_backward",
    "upsample_bilinear2d_backward",
    "upsample_bicubic2d_backward",
    "reflection_pad2d_backward",
    "grid_sampler_2d_backward",
    "scaled_dot_product_efficient_attention_backward",
    "put",
    "histc",
    "median",
)
# What autocast casts on CUDA, among the functions that this project calls (ATen/autocast_mode.h).
TO_BFLOAT16 = (
    *("conv2d", "conv_transpose2d.input", "linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "mv"),
    "scaled_dot_product_attention",
)
TO_FLOAT32 = (
    *("softmax.int", "log_softmax.int", "layer_norm", "norm.ScalarOpt_dim", "sum", "sum.dim_IntList", "prod", "cosh"),
    *("cdist", "nll_loss", "cumsum", "log", "exp", "pow.Tensor_Scalar", "reciprocal", "rsqrt"),
)


class DeviceError(RuntimeError):
    """What CUDA would refuse, or could only do in another order every time."""


class DeviceTensor(torch.Tensor):
    """A tensor on ``gpu:0``; ``element`` has its values on the CPU (on ``meta`` it has none)."""

    element: torch.Tensor

    @staticmethod
    def __new__(cls, element: torch.Tensor) -> DeviceTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            element.size(),
            strides=element.stride(),
            storage_offset=element.storage_offset(),
            dtype=element.dtype,
            layout=element.layout,
            device=torch.device("gpu", 0),
        )
        made.element = element
        return made

    def __tensor_flatten__(self):  # Module.to() then swaps parameters in place, as it does between CPU and CUDA
        return ["element"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return DeviceTensor(inner["element"])

    def tolist(self):  # torch's own refuses subclasses
        return self.cpu().tolist()

    def __repr__(self):
        return f"DeviceTensor({self.element!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {}, None)


class Emulation(TorchDispatchMode):
    """The device while it is there.

    ``operations`` counts what ran on it by name, ``copies`` tensors by direction (``cpu->gpu``, ``gpu->cpu``; a CPU
    index into a tensor on the device is one), ``reads`` what makes the host wait for a value.

    Args:
        elements: ``cpu``, or ``meta`` to compute nothing (for counting).
    """

    def __init__(self, elements: str = "cpu"):
        super().__init__()
        self.elements = elements
        self.operations: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.refused: list[str] = []  # in backward passes, where an exception of Python's would end the process
        self.tape: Tape | None = None  # while a graph is captured

    def count(self, func: Any, args: tuple, target: str) -> None:
        """Count an operation whose result is on ``target``."""
        self.operations[func._schema.name] += 1
        if func in COPIES and isinstance(args[0], torch.Tensor):
            source = _place(args[1] if func is aten.copy_.default else args[0])
            if source != target:
                self.copies[f"{source}->{target}"] += 1
        if func in INDEXED:
            self.copies["cpu->gpu"] += sum(_place(index) == "cpu" for index in args[1] if index is not None)
        if func in READS:
            self.reads[func._schema.name] += 1

    def waits(self) -> int:
        """Copies and reads so far."""
        return self.copies.total() + self.reads.total()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.is_inference_mode_enabled() and func._can_decompose():  # outside of it they arrive decomposed
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return _run(func, args, kwargs or {}, self)


@contextmanager
def emulated_gpu(elements: str = "cpu") -> Iterator[Emulation]:
    """Within the block ``gpu`` is a device.

    Raises:
        DeviceError: something wrong in a backward pass, at the end of the block; elsewhere it is raised on the spot.
    """
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="gpu") is made on the CPU, then moved by us
    try:
        with Emulation(elements) as mode:
            yield mode
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
    if mode.refused:
        raise DeviceError(f"in a backward pass, {len(mode.refused)} times: {mode.refused[0]}")


class Tape:
    """What a CUDA graph keeps: operations with the memory that they read and write, and no Python between them.

    A capture on CUDA computes nothing. Here operations have to run to be seen; :meth:`rewind` puts back what was in
    every storage that they changed, and torch's generator.
    """

    def __init__(self):
        self.operations: list[tuple[Any, tuple, dict[str, Any], Any]] = []
        self.before: dict[int, tuple[Any, Any]] = {}
        self.made: set[int] = set()
        self.random = torch.get_rng_state()

    def run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Do one operation on the values, and keep it."""
        for tensor in _written(func, args, kwargs):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.made | self.before.keys():
                self.before[storage.data_ptr()] = storage, storage.clone()
        result = func(*args, **kwargs)
        given = {tensor.untyped_storage().data_ptr() for tensor in _tensors_in((args, kwargs))}
        fresh = [tensor for tensor in _tensors_in(result) if tensor.untyped_storage().data_ptr() not in given]
        self.made |= {tensor.untyped_storage().data_ptr() for tensor in fresh}
        if fresh or _written(func, args, kwargs):  # otherwise it only makes another view
            self.operations.append((func, args, kwargs, result))
        return result

    def rewind(self) -> None:
        """Let no operation have happened."""
        for storage, content in self.before.values():
            storage.copy_(content)
        torch.set_rng_state(self.random)

    def replay(self) -> None:
        """Do all operations again, into the same memory."""
        for func, args, kwargs, result in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors_in(result), _tensors_in(again), strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


class EmulatedGraphs:
    """Captures steps on the emulated device (a :class:`par.training.step.Recorder`)."""

    def __init__(self, mode: Emulation):
        self.mode = mode
        self.n_captured = self.n_replayed = 0

    def warm_up(self, step: Callable[[], None]) -> None:
        step()

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        tape = self.mode.tape = Tape()
        refused = len(self.mode.refused)
        try:
            step()
        finally:
            self.mode.tape = None
            tape.rewind()
        if self.mode.refused[refused:]:
            raise DeviceError(self.mode.refused[-1])
        self.n_captured += 1

        def replay() -> None:
            self.n_replayed += 1
            tape.replay()

        return replay


def _tensors_in(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(values)[0] if isinstance(leaf, torch.Tensor)]


def _written(func: Any, args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operation changes."""
    if func is aten.native_batch_norm.default:  # its schema does not say so
        return _tensors_in(args[3:5]) if args[5] else []
    arguments = func._schema.arguments
    named = {argument.name: value for argument, value in zip(arguments, args)} | kwargs  # noqa: B905
    return [
        tensor
        for argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors_in(named.get(argument.name))
    ]


def _on_device(value: Any) -> bool:
    return isinstance(value, DeviceTensor)


def _place(tensor: torch.Tensor) -> str:
    return "gpu" if _on_device(tensor) else "cpu"


def _run(func: Any, args: tuple, kwargs: dict[str, Any], mode: Emulation | None) -> Any:
    """Check one operation, do it on the values, and wrap what belongs on the device."""
    flat = tree_flatten((args, kwargs))[0]
    on_device = [value for value in flat if _on_device(value)]
    asked = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
    if func is aten._fused_sdp_choice.default:
        return 0  # plain attention, as the policy of par/training/precision.py asks of CUDA
    if asked != "gpu" and not on_device:
        return func(*args, **kwargs)
    target = asked or _target(func, args)
    waits = mode.waits() if mode is not None else 0
    try:
        _check(func, args, flat, target)
        if mode is not None:
            mode.count(func, args, target)
            if mode.tape is not None and mode.waits() > waits:
                raise DeviceError(f"{func._schema.name} needs the host while a graph is captured")
    except DeviceError as error:
        if torch._C._current_graph_task_id() == -1 or mode is None:
            raise
        mode.refused.append(str(error))
    elements = mode.elements if mode is not None else on_device[0].element.device.type
    if elements == "meta" and not func._schema.returns:
        return None  # an optimiser's fused kernel, which has none for meta
    inner_args, inner_kwargs = tree_map_only(DeviceTensor, lambda tensor: tensor.element, (args, kwargs))
    if asked is not None:
        inner_kwargs = {name: value for name, value in inner_kwargs.items() if name != "pin_memory"}
        inner_kwargs["device"] = elements if target == "gpu" else asked
    if mode is not None and mode.tape is not None:
        result = mode.tape.run(func, inner_args, inner_kwargs)
    else:
        result = func(*inner_args, **inner_kwargs)
    if target != "gpu":
        return args[0] if func in COPIES and asked is None else result
    return return_and_correct_aliasing(func, args, kwargs, tree_map_only(torch.Tensor, DeviceTensor, result))


def _target(func: Any, args: tuple) -> str:
    """Where the result of an operation is that does not say so."""
    if func in COPIES and func is not aten._to_copy.default:
        return _place(args[0] if isinstance(args[0], torch.Tensor) else args[0][0])
    return "gpu"


def _check(func: Any, args: tuple, flat: list[Any], target: str) -> None:
    """Raise a DeviceError for what the module's docstring forbids."""
    name = func._schema.name.removeprefix("aten::").strip("_")
    if name in NONDETERMINISTIC:
        raise DeviceError(f"{name} has no deterministic kernel on CUDA")
    for value in flat:
        if isinstance(value, torch.Generator) and value.device.type != target:
            raise DeviceError(f"{name}: a generator on {value.device.type} cannot fill a tensor on {target}")
    if func in COPIES:
        return
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]
    if func in INDEXED and _on_device(args[0]):
        tensors = [value for value in (args[0], *args[2:3]) if isinstance(value, torch.Tensor)]
    if len({_place(tensor) for tensor in tensors if tensor.dim() or _on_device(tensor)}) > 1:
        described = ", ".join(f"{_place(tensor)}{list(tensor.shape)}" for tensor in tensors)
        raise DeviceError(f"{name}: tensors on both devices: {described}")


class _Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16]

    def _lazy_init(self):
        pass


def _register() -> list[torch.library.Library]:
    """Make the spare backend the device ``gpu`` and give it CUDA's autocast; once in a process."""
    backend_registration._setup_privateuseone_for_python_backend("gpu", backend_module=_Backend())
    fallback = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for names, source, target in (
        (TO_BFLOAT16, torch.float32, torch.bfloat16),
        (TO_FLOAT32, torch.bfloat16, torch.float32),
    ):
        for name in names:
            packet, _, overload = name.partition(".")
            func = getattr(getattr(aten, packet), overload or "default")
            library.impl(func, _casting(func, source, target))
    return [fallback, library]


def _casting(func: Any, source: torch.dtype, target: torch.dtype) -> Callable[..., Any]:
    """``func`` with its arguments on the device cast from one type to the other first."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(target) if _on_device(tensor) and tensor.dtype == source else tensor

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            args, kwargs = tree_map_only(torch.Tensor, cast, (args, kwargs))
            return func(*args, **kwargs)

    return kernel


_libraries = _register()  # what is registered lives as long as they do
GPU = torch.device("gpu")
