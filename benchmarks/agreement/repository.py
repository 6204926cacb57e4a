"""PAR's public repository (WenjinW/PAR) as modules: imported from a checkout of it, none of its code stands here.

Patched: packages that it imports and that nothing used here calls (``STUBS``) are empty stand-ins where they are not
installed (turtle, of the standard library, always: it needs a screen); figures are not drawn; no pretrained weights are
downloaded; parameters are not counted in a way that numpy 2 refuses. Its ``run.py``, which ends without CUDA, is not
used.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch import nn

from par.cells.genotype import KINDS, OPERATIONS, Genotype

STUBS = ("rsa", "seaborn", "torchsummary", "turtle", "wandb")
MODULES = (
    "utils",
    "automl.darts_genotypes",
    "automl.mdenas_search",
    "models.pretrained_feat_extractor",
    "models.resnet",
    "approaches.par_v2",
    "approaches.single",
    "approaches.ewc",
    "approaches.mas",
    "approaches.lwf",
    "models.resnet_pn",
    "approaches.progressive",
    "models.individual_model",
    "approaches.individual",
    "models.resnet_ltg",
    "approaches.ltg",
)


def load(directory: Path) -> SimpleNamespace:
    """Its modules by the last part of their names.

    Args:
        directory: the checkout, with ``src`` in it.

    Raises:
        SystemExit: there is no checkout.
    """
    return import_from(directory, "src", MODULES, "WenjinW/PAR")


def import_from(
    directory: Path,
    source: str,
    names: Sequence[str],
    what: str,
    stubs: Sequence[str] = STUBS,
    stand_ins: Mapping[str, Any] | None = None,
) -> SimpleNamespace:
    """Modules of a checkout of the repository ``what``, by the last part of their names.

    Args:
        source: their folder in the checkout.
        stubs: modules that they import and that nothing used here calls.
        stand_ins: modules that take the place of others that they import.

    Raises:
        SystemExit: there is no checkout.
    """
    folder = directory / source
    last = folder / f"{names[-1].replace('.', '/')}.py"
    if not last.is_file():
        raise SystemExit(f"{directory} holds no {last.relative_to(directory)}; name a checkout of {what}.")
    _forget({name.partition(".")[0] for name in names})  # other checkouts have packages of the same names
    absent = [name for name in stubs if name == "turtle" or not _is_installed(name)]
    replaced = {name: mock.MagicMock() for name in absent} | dict(stand_ins or {})
    sys.modules |= replaced
    sys.path.insert(0, str(folder))
    try:
        return SimpleNamespace(**{name.rpartition(".")[2]: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(folder))
        for name in replaced:
            del sys.modules[name]


def run_script(script: Path, options: Mapping[str, Any], folder: Path, stand_ins: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of a script of a checkout, after it was run with ``options`` in a folder, as if there were CUDA.

    Args:
        stand_ins: modules that take the place of others of the checkout.
    """
    own = {path.stem for path in script.parent.iterdir()}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]

    _forget(own)
    sys.modules |= dict(stand_ins)
    try:
        with (
            chdir(folder),
            mock.patch.object(sys, "argv", [script.name, *words]),
            mock.patch.object(sys, "path", [str(script.resolve().parent), *sys.path]),
            mock.patch.object(nn.Module, "cuda", lambda module: module),
            mock.patch("torch.cuda.is_available", lambda: True),
            mock.patch("torch.cuda.manual_seed"),
        ):
            return runpy.run_path(str(script.resolve()))
    finally:
        _forget(own)


def _forget(packages: Collection[str]) -> None:
    """Let modules of these top-level names be imported anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # nor is the package that it would be in
        return False


def commit(directory: Path) -> str:
    """The commit of a checkout, abbreviated."""
    command = ["git", "-C", str(directory), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def make_approach(
    modules: SimpleNamespace, n_classes: Sequence[int], extractor: nn.Module, channels: int, **changes: Any
) -> Any:
    """Its ``Appr`` on the CPU, with its script's arguments for CIFAR100-10 but for ``channels`` and ``changes``."""
    logger = logging.getLogger("par_v2")
    logger.setLevel(logging.ERROR)
    arguments = dict(
        logger=logger,
        device="cpu",
        metric="acc",
        num_layers=4,
        init_channel=channels,
        pretrained_feat_extractor="resnet18",
        sample_epochs=100,
        epochs=100,
        batch=64,
        eval_batch=0,
        lr=0.01,
        lamb=0.003,
        lr_search=0.01,
        lr_scheduler="cos",
        lr_patience=20,
        clipgrad=10,
        coefficient_kl=1,
        nas="mdl",
        task_relatedness_method="mean",
        reuse_threshold=0.5,
        reuse_cell_threshold=0.75,
        num_workers=0,
        result_path="",
        task_dist_image_size=(8, 6),
    )
    arguments |= changes
    with mock.patch.object(modules.par_v2, "get_pretrained_feat_extractor", lambda name: extractor):
        return modules.par_v2.Appr(
            [3, 32, 32], list(enumerate(n_classes)), device="cpu", args=SimpleNamespace(**arguments)
        )


def make_search(modules: SimpleNamespace, n_classes: int, channels: int, weight_decay: float) -> Any:
    """Its ``AutoSearch`` on the CPU, with its script's arguments for CIFAR100-10 but for ``channels``."""
    arguments = SimpleNamespace(
        logger=mock.Mock(), metric="acc", lr=0.01, lr_search=0.01, lamb=weight_decay, num_workers=0
    )
    with mock.patch.object(modules.mdenas_search.utils, "count_parameters_in_MB", lambda network: 0.0):
        return modules.mdenas_search.AutoSearch(
            4, n_classes, [3, 32, 32], init_channel=channels, device="cpu", args=arguments
        )


def make_genotype(modules: SimpleNamespace, genotype: Genotype) -> Any:
    """Our genotype as its named tuple: a flat list of pairs for each kind of cell."""
    fields: dict[str, Any] = {}
    for kind in KINDS:
        fields[kind] = [pair for node in getattr(genotype, kind) for pair in node]
        fields[f"{kind}_concat"] = [2, 3, 4, 5]
    return modules.darts_genotypes.Genotype(**fields)


def our_name(name: str) -> str | None:
    """Where a parameter or buffer of its networks stands in ours; ``None`` for the BatchNorms that it never uses.

    Args:
        name: in the state dict of its ``PARModel`` (experts and ``fc``) or of its search network ``BasicNetwork``.
    """
    if re.search(r"(preprocess0|_ops\.\d+)\.bn\.", name) or re.search(r"_ops\.\d+\._ops\.3\.bn\.", name):
        return None
    name = re.sub(r"^experts\.\d+\.", "trunk.", name)
    name = re.sub(r"^fc\.(\d+)\.", r"heads.by_task.\1.", name)
    name = re.sub(r"^classifier\.", "head.", name)
    name = re.sub(r"^(stem|cells)\.", r"supernet.\1.", name)
    name = name.replace(".preprocess0.", ".inputs.older.").replace(".preprocess1.", ".inputs.newer.")
    name = name.replace(".conv_1.", ".even.").replace(".conv_2.", ".odd.")
    # its convolutions begin with a ReLU, which ours find done
    name = re.sub(r"\.op\.(\d+)\.", lambda match: f".layers.{int(match[1]) - 1}.", name)
    name = re.sub(r"\._ops\.(\d+)\._ops\.(\d+)\.", lambda m: f".edges.{m[1]}.{OPERATIONS[int(m[2])]}.", name)
    return re.sub(r"\._ops\.(\d+)\.", lambda m: f".operations.{int(m[1]) // 2}.{int(m[1]) % 2}.", name)


def our_resnet_name(name: str) -> str:
    """Where a parameter or buffer of its light ResNet18 stands in one of our learners with a shared trunk."""
    name = re.sub(r"^fc\.(\d+)\.", r"heads.by_task.\1.", name)
    name = re.sub(r"^conv1\.", "trunk.stem.0.", name)
    name = re.sub(r"^bn1\.", "trunk.stem.1.", name)
    name = re.sub(r"^layer(\d)\.", lambda match: f"trunk.stages.{int(match[1]) - 1}.", name)
    return _in_block(name)


def our_column_name(name: str) -> str:
    """Where a parameter or buffer of its progressive network stands in ours; laterals belong to the next column."""
    part, number, rest = name.split(".", 2)
    kind = re.fullmatch(r"(layer(\d)|fc|conv1|bn1)(?:_(scale|r|u))?", part)
    assert kind is not None, name
    if kind[3] is not None:
        place = f"parts.{int(number) + 1}.laterals.{int(kind[2]) - 1 if kind[2] else 4}"
        return f"{place}.0.scale" if kind[3] == "scale" else _in_block(f"{place}.{1 if kind[3] == 'r' else 3}.{rest}")
    if kind[1] == "fc":
        return f"heads.by_task.{number}.{rest}"
    return f"parts.{number}." + our_resnet_name(f"{part}.{rest}")


def _in_block(name: str) -> str:
    return name.replace(".bn1.", ".norm1.").replace(".bn2.", ".norm2.").replace(".downsample.", ".shortcut.")


def pair_up(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], naming: Callable[[str], str | None] = our_name
) -> list[tuple[str, Any, Any]]:
    """Name, value of theirs and value of ours for everything that both have.

    Raises:
        AssertionError: something of ours has no counterpart, or the other way round.
    """
    named = {naming(name): value for name, value in theirs.items()}
    named.pop(None, None)
    assert named.keys() == ours.keys(), f"without counterpart: {sorted(map(str, named.keys() ^ ours.keys()))}"
    return [(name, named[name], value) for name, value in ours.items()]


class Replayed:
    """Batches in the place of a ``DataLoader``: every time it is gone through, those of the next epoch.

    Args:
        epochs: for each epoch its batches; the last epoch's are repeated.
    """

    def __init__(self, epochs: Sequence[Sequence[tuple[Any, Any]]]):
        self.epochs, self.position = epochs, 0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        batches = self.epochs[min(self.position, len(self.epochs) - 1)]
        self.position += 1
        return iter(batches)

    def __len__(self) -> int:
        return len(self.epochs[0])


@contextmanager
def loaders(*queues: Sequence[Sequence[tuple[Any, Any]]]) -> Iterator[None]:
    """Inside, every ``torch.utils.data.DataLoader`` that is made hands out the next of ``queues``."""
    made = iter(queues)
    with mock.patch("torch.utils.data.DataLoader", lambda *_, **__: Replayed(next(made))):
        yield
