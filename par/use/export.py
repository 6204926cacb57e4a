"""A learner as files for other programs: safetensors with a JSON card, and ONNX of one task's network.

safetensors, onnx, onnxruntime and onnxscript are the optional extra ``export``; they are imported where they are used.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from par.files import canonical_json, read_json, write_atomically, write_json
from par.methods.bases.method import Method
from par.schema import ConfigError, to_plain
from par.settings import from_plain
from par.streams import Task
from par.use.card import described_stream, learner_card
from par.use.predictor import Predictor

TENSOR = "tensor"  # the only key of what stands in the card for a tensor
TOLERANCE = 1e-4  # of the logits of an ONNX file, relative to the largest of them if that is above 1
EXAMPLES = 16  # images that an ONNX file is checked with


class InexactError(ArithmeticError):
    """An ONNX file whose logits are not those of the learner."""


def export_state(predictor: Predictor, out: Path, accuracies: Sequence[float] | None = None) -> None:
    """Write ``model.safetensors``, every tensor of every chain, and ``card.json``, all else: stream, tasks with classes
    and normalisation, settings, cells, parameters, accuracies.

    Args:
        accuracies: accuracy on the test images of every task after the last one, where it is known.

    Raises:
        ConfigError: the extra ``export`` is not installed.
    """
    save_file = needed("safetensors.torch").save_file
    tensors: dict[str, Tensor] = {}
    chains = [
        {"tasks": list(chain["tasks"]), "state": _without_tensors(chain["state"], f"chain{number}", tensors)}
        for number, chain in enumerate(predictor.chains)
    ]
    write_atomically(out / "model.safetensors", lambda draft: save_file(tensors, draft))
    write_json(out / "card.json", describe_learner(predictor, accuracies) | {"chains": chains})


def describe_learner(predictor: Predictor, accuracies: Sequence[float] | None = None) -> dict[str, Any]:
    """All of a learner but its tensors, as JSON; ``accuracies``: see :func:`export_state`."""
    chains = [chain["tasks"] for chain in predictor.chains]
    sizes = [predictor.learner(tasks[0]).n_params() for tasks in chains]
    return learner_card(predictor.stream, to_plain(predictor.settings), chains, accuracies) | {
        "cells": {str(chain["tasks"][0]): _genotype(chain) for chain in predictor.chains if _genotype(chain)},
        "n_params": sum(sizes),
        "n_params_of_chains": sizes,
    }


def read_export(folder: Path, device: torch.device | str = "cpu") -> Predictor:
    """The learner that :func:`export_state` wrote; it needs neither the run nor the built stream.

    Raises:
        ConfigError: the extra ``export`` is not installed, or the card is of another version of the code.
    """
    card, tensors = read_json(folder / "card.json"), needed("safetensors.torch").load_file(folder / "model.safetensors")
    chains = [{"tasks": one["tasks"], "state": _with_tensors(one["state"], tensors)} for one in card["chains"]]
    settings = from_plain(card["learner"], f"{folder}/card.json")
    return Predictor(described_stream(card), settings, chains, device)


class Classifier(nn.Module):
    """The network of one task with its head: pixels 0 to 255 (float32 ``[n, 3, H, W]``) to logits ``[n, K]``."""

    mean: Tensor
    std: Tensor

    def __init__(self, learner: Method, task: Task):
        super().__init__()
        self.learner, self.task = learner, task.index
        for name, values in (("mean", task.mean), ("std", task.std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32)[None, :, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        return self.learner.logits(pixels * (1 / (255 * self.std)) - self.mean / self.std, self.task)


def export_onnx(predictor: Predictor, task: int, pixels: np.ndarray, path: Path) -> float:
    """Write the network of a task as ONNX: ``pixels`` float32 ``[n, 3, H, W]`` from 0 to 255 to ``logits``.

    The normalisation is inside; the class names are in the metadata under ``classes``.

    Args:
        pixels: uint8 ``[m, 3, H, W]``, images that onnxruntime must answer as the learner does, all and one alone.

    Returns:
        The largest difference between the logits.

    Raises:
        InexactError: the file answers otherwise; it is not written.
        ConfigError: the extra ``export`` is not installed.
    """
    onnx, onnxruntime = needed("onnx"), needed("onnxruntime")
    needed("onnxscript")
    described = predictor.stream.tasks[task]
    classifier = Classifier(predictor.learner(task), described).eval()
    examples = torch.from_numpy(np.array(pixels[:EXAMPLES])).float()
    differences = []

    def write(draft: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its own internals
            torch.onnx.export(
                classifier,
                (examples,),
                str(draft),
                input_names=["pixels"],
                output_names=["logits"],
                dynamic_shapes={"pixels": {0: torch.export.Dim("n", min=1)}},
                external_data=False,
                verbose=False,
            )
        model = onnx.load(draft)
        classes = canonical_json(list(described.class_names))
        onnx.helper.set_model_props(model, {"task": described.name, "classes": classes})
        onnx.save(model, draft)
        session = onnxruntime.InferenceSession(draft.read_bytes(), providers=["CPUExecutionProvider"])
        for rows in (slice(None), slice(0, 1)):
            (found,) = session.run(["logits"], {"pixels": examples[rows].numpy()})
            expected = predictor.logits(pixels[:EXAMPLES][rows], task)
            differences.append(float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max())))
        if max(differences) > TOLERANCE:
            raise InexactError(
                f"the ONNX file of task {task} answers with logits that differ by {max(differences):.1e} of the "
                f"largest, more than {TOLERANCE:g}."
            )

    write_atomically(path, write)
    return max(differences)


def needed(module: str) -> ModuleType:
    """A module of the extra ``export``.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ConfigError(f"{package} is not installed; run: pip install -e '.[export]'.") from None


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` as JSON, its tensors moved to ``tensors`` under names that say where they stood."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().contiguous().clone()
        return {TENSOR: name}
    if isinstance(value, Mapping):
        return {key: _without_tensors(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_tensors(item, f"{name}.{position}", tensors) for position, item in enumerate(value)]
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    if isinstance(value, dict):
        if set(value) == {TENSOR} and isinstance(value[TENSOR], str):
            return tensors[value[TENSOR]]
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    return value


def _genotype(chain: Mapping[str, Any]) -> Any:
    """The cell of a chain's expert, None where the learner has none."""
    return chain["state"]["tasks"][0].get("genotype")
