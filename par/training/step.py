"""How a training step runs: called, or on CUDA captured once as a graph and replayed.

A step is a function of tensors that stay in place: those of a batch (:class:`Steps` copies each batch into them),
weights, the optimiser's state and rate. A replay repeats the kernels on them and runs nothing on the host, so that
whatever the host decides in a step has to be the same in all steps of a fit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Inputs = Mapping[str, Tensor]


class Recorder(Protocol):
    """What makes a step repeatable, for one fit."""

    def warm_up(self, step: Callable[[], None]) -> None:
        """Do the step: all that is made only once is there afterwards."""

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Call the step without changing a tensor by it; returns what does it, every time it is called.

        Raises:
            RuntimeError: the step does something that cannot be repeated without the host; nothing has changed.
        """


class CudaGraphs:
    """Records CUDA graphs."""

    def __init__(self, device: torch.device):
        self.device, self.stream = device, torch.cuda.Stream(device)

    def warm_up(self, step: Callable[[], None]) -> None:
        """On the stream that will be captured, so that its libraries have their workspaces."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            step()
        current.wait_stream(self.stream)

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """See :class:`Recorder`. torch leaves a failed capture's stream current, and its generator in capture mode."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        generator = torch.cuda.default_generators[current.device_index]
        before = generator.clone_state()
        try:
            with torch.cuda.device(self.device), torch.cuda.graph(graph, stream=self.stream):
                step()
        except BaseException:
            torch.cuda.set_stream(current)
            generator.graphsafe_set_state(before)
            raise
        return graph.replay


_recorder: ContextVar[Callable[[torch.device], Recorder] | None] = ContextVar("recorder", default=None)


@contextmanager
def capturing(make: Callable[[torch.device], Recorder] | None) -> Iterator[None]:
    """Within the block every fit records its steps by a recorder of its own that ``make`` makes; None: by none."""
    token = _recorder.set(make)
    try:
        yield
    finally:
        _recorder.reset(token)


def cuda_graphs(device: torch.device, capture: bool) -> Callable[[torch.device], Recorder] | None:
    """What ``capture: auto`` (True) of params.yaml means on a device, for :func:`capturing`."""
    return CudaGraphs if capture and device.type == "cuda" else None


def recorder(device: torch.device) -> Recorder | None:
    """A new recorder by what is in force."""
    make = _recorder.get()
    return make(device) if make is not None else None


def in_place(device: torch.device) -> bool:
    """Whether an optimiser's state and rate are tensors on the device.

    On CUDA they are, captured or not: so the same kernels run, and give the same bits, whether a step is captured.
    """
    return device.type == "cuda" or _recorder.get() is not None


def adam(parameters: Iterable[Tensor], device: torch.device, **options: Any) -> torch.optim.Adam:
    """torch's Adam, that can be captured where that matters."""
    if in_place(device):
        options |= {"fused": True, "capturable": True}
    return torch.optim.Adam(parameters, **options)


def sgd(parameters: Sequence[nn.Parameter], device: torch.device, **options: Any) -> torch.optim.SGD:
    """torch's SGD, that can be captured where that matters: alone its fused kernel takes a rate on the device.

    That kernel does not stand a parameter whose first gradient comes later than others', so that momentum buffers are
    there from the start: as zeros, which give the first step the same momentum, its gradient.
    """
    if not in_place(device):
        return torch.optim.SGD(parameters, **options)
    optimizer = torch.optim.SGD(parameters, **options, fused=True)
    if options["momentum"]:
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def match_layouts(parameters: Iterable[nn.Parameter]) -> None:
    """Give every gradient its parameter's strides.

    Fused optimisers demand it even in dimensions of one element, where autograd leaves what a kernel chose; there it
    costs no copy.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or gradient.stride() == parameter.stride():
            continue
        strides = zip(parameter.shape, parameter.stride(), gradient.stride(), strict=True)
        if all(mine == other for size, mine, other in strides if size > 1):
            parameter.grad = gradient.as_strided(parameter.shape, parameter.stride())
        else:
            parameter.grad = torch.empty_like(parameter).copy_(gradient)


@contextmanager
def rate_on_device(optimizer: torch.optim.Optimizer, rate: Tensor) -> Iterator[None]:
    """Within the block the optimiser's learning rate is ``rate`` (float32 []); else a number, as schedules want it."""
    (group,) = optimizer.param_groups
    number = group["lr"]
    group["lr"] = rate.fill_(number)
    try:
        yield
    finally:
        group["lr"] = number


@contextmanager
def undone(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], where: Tensor) -> Iterator[None]:
    """If ``where`` (bool []), what the optimiser does in the block to ``parameters`` and their state is undone.

    As if they had no gradient, but decided on the device.
    """
    before = [
        (parameter.detach().clone(), {name: value.clone() for name, value in _tensors(optimizer.state[parameter])})
        for parameter in parameters
    ]
    yield
    with torch.no_grad():
        for parameter, (weight, state) in zip(parameters, before, strict=True):
            parameter.copy_(torch.where(where, weight, parameter))
            for name, value in _tensors(optimizer.state[parameter]):
                value.copy_(torch.where(where, state.get(name, torch.zeros_like(value)), value))


def _tensors(state: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in state.items() if isinstance(value, Tensor)]


def to_device(batches: Sequence[Inputs], device: torch.device) -> list[dict[str, Tensor]]:
    """The tensors of all batches on the device: one copy for each type of number, however many batches there are."""
    if device.type == "cpu":
        return [dict(batch) for batch in batches]
    moved = {}
    for dtype in {tensor.dtype for batch in batches for tensor in batch.values()}:
        parts = [tensor for batch in batches for tensor in batch.values() if tensor.dtype == dtype]
        flat = torch.cat([part.reshape(-1) for part in parts]).to(device)
        moved[dtype] = iter(flat.split([part.numel() for part in parts]))
    return [{name: next(moved[tensor.dtype]).view(tensor.shape) for name, tensor in batch.items()} for batch in batches]


class Steps:
    """The steps of a fit.

    The first batch is a warm-up. The next one of the same shapes is recorded, and replayed with all of these shapes
    that follow; others (the last batch of an epoch) are called. A step that cannot be recorded is said in a line on
    stderr, once, and the fit goes on by calls.

    Args:
        recorder: None calls every step.
        modules: all in training; for :meth:`epoch`.
    """

    def __init__(self, recorder: Recorder | None, modules: nn.Module):
        self._recorder = recorder
        norms = [module for module in modules.modules() if isinstance(module, _BatchNorm)]
        self._norms = [norm for norm in norms if norm.num_batches_tracked is not None]
        self._shapes: dict[str, Any] | None = None
        self._static: dict[str, Tensor] = {}
        self._replay: Callable[[], None] | None = None
        self._n_replays = 0
        self._counts: list[int] = []  # batches that a replay means for each norm

    def __call__(self, step: Callable[[Inputs], None], inputs: Inputs, capturable: bool) -> None:
        """Do ``step``, always the same one, on the tensors of a batch; ``capturable``: it may be recorded."""
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in inputs.items()}
        if self._recorder is None or not capturable or self._shapes not in (None, shapes):
            step(inputs)
        elif self._shapes is None:
            self._shapes = shapes
            self._recorder.warm_up(lambda: step(inputs))
        elif self._replay is None and not self._record(step, inputs, self._recorder):
            step(inputs)
        else:
            assert self._replay is not None
            for name, tensor in self._static.items():
                tensor.copy_(inputs[name])
            self._replay()
            self._n_replays += 1

    def _record(self, step: Callable[[Inputs], None], inputs: Inputs, recorder: Recorder) -> bool:
        """Whether the step could be recorded."""
        static, before = {name: tensor.clone() for name, tensor in inputs.items()}, self._seen()
        try:
            self._replay = recorder.record(lambda: step(static))
        except RuntimeError as error:
            self._recorder = None
            reason = " ".join(str(_first(error)).split())[:200]
            print(f"Steps are launched one by one, because they could not be captured: {reason}", file=sys.stderr)
        self._static = static
        self._counts = [seen - earlier for seen, earlier in zip(self._seen(), before, strict=True)]
        for norm, earlier in zip(self._norms, before, strict=True):
            norm.num_batches_tracked = torch.tensor(earlier)
        return self._replay is not None

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Within the block batch normalisations count their batches on the host; the device learns the sum at its end.

        Each of them would launch a kernel a step for a number that nothing here reads.
        """
        there = [_tracked(norm) for norm in self._norms]
        for norm in self._norms:
            norm.num_batches_tracked = torch.tensor(0)
        try:
            yield
        finally:
            counts = self._counts or [0] * len(self._norms)
            for norm, tracked, seen, count in zip(self._norms, there, self._seen(), counts, strict=True):
                if n_batches := seen + self._n_replays * count:
                    tracked.add_(n_batches)
                norm.num_batches_tracked = tracked
            self._n_replays = 0

    def _seen(self) -> list[int]:
        return [int(_tracked(norm)) for norm in self._norms]


def _tracked(norm: _BatchNorm) -> Tensor:
    assert norm.num_batches_tracked is not None
    return norm.num_batches_tracked


def _first(error: BaseException) -> BaseException:
    """The error that others followed: ending a capture that broke raises one more."""
    while error.__context__ is not None:
        error = error.__context__
    return error
