"""The frozen feature networks, with the real EfficientNet-Lite0."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import torch
from skimage import data
from skimage.transform import resize
from torchvision.models import resnet18

from par.config import ExtractorSettings
from par.files import sha256_file
from par.relatedness import extractor as module
from par.relatedness.extractor import extract_stream, load_extractor
from par.schema import ConfigError


def settings(**changes):
    return ExtractorSettings(**{"network": "efficientnet_lite0", **changes})


@pytest.fixture(scope="module")
def lite0():
    return load_extractor(settings(image_size=32))


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No ResNet18 in the cache, and every connection fails at once."""
    attempts = []

    def refuse(url, timeout):
        assert timeout <= 10
        attempts.append(url)
        raise URLError("Name or service not known")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return attempts


@pytest.fixture(scope="module")
def resnet18_file(tmp_path_factory):
    """A ResNet18 file with random weights: the real ones cannot be had offline."""
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.manual_seed(0)
    torch.save(resnet18().state_dict(), path)
    return path


def images(n=20, size=16, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 3, size, size), dtype=np.uint8)


def test_lite0_is_described_by_name_digest_and_size(lite0):
    description = lite0.describe()
    assert description["name"] == "efficientnet_lite0"
    assert description["digest"] == sha256_file(module._efficientnet_lite0_weights())
    assert description["n_params"] == 3_371_008
    assert description["image_size"] == 32


def test_weights_and_normalisation_are_the_trained_ones():
    """With its classifier put back, the network knows a photographed cat (ImageNet 281-285) and an espresso (967)."""
    path = module._efficientnet_lite0_weights()
    state = torch.load(path, weights_only=True)
    extractor = load_extractor(settings())
    for photo, classes in ((data.chelsea(), range(281, 286)), (data.coffee(), [967])):
        height, width = photo.shape[:2]
        square = photo[:, (width - height) // 2 :][:, :height]
        pixels = (resize(square, (224, 224), anti_aliasing=True) * 255).astype(np.uint8)
        features = extractor.features(pixels.transpose(2, 0, 1)[None])
        logits = torch.from_numpy(features) @ state["_fc.weight"].T + state["_fc.bias"]
        assert logits.softmax(1)[0, list(classes)].sum() > 0.5


def test_network_is_frozen_and_left_unchanged(lite0):
    before = {name: tensor.clone() for name, tensor in lite0.network.state_dict().items()}
    assert any("running_mean" in name for name in before)
    lite0.features(images())
    assert not any(part.training for part in lite0.network.modules())
    assert not any(parameter.requires_grad for parameter in lite0.network.parameters())
    for name, tensor in lite0.network.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_loading_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    load_extractor(settings())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_features_are_bit_equal_twice(lite0):
    first = lite0.features(images())
    assert first.shape == (20, 1280) and first.dtype == np.float32
    assert first.std() > 0.1
    np.testing.assert_array_equal(first, load_extractor(settings(image_size=32)).features(images()))


@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_features_do_not_depend_on_the_batch(lite0, batch_size):
    other = load_extractor(settings(image_size=32, batch_size=batch_size)).features(images())
    np.testing.assert_allclose(other, lite0.features(images()), atol=2e-5)


@pytest.mark.parametrize("size", [8, 16, 17, 28, 32])
def test_native_resolution_of_small_images(size):
    features = load_extractor(settings()).features(images(n=2, size=size))
    assert features.shape == (2, 1280) and np.isfinite(features).all()


def test_image_size_resizes(lite0):
    native = load_extractor(settings())
    np.testing.assert_array_equal(native.features(images(size=32)), lite0.features(images(size=32)))
    assert np.abs(native.features(images()) - lite0.features(images())).max() > 0.1


def test_a_batch_too_large_for_the_card_is_one_sentence(lite0):
    def full(pixels):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    small = dataclasses.replace(lite0, network=full, batch_size=7)
    with pytest.raises(ConfigError, match="extractor.batch_size = 7 images of 32 pixels do not fit .* lower it"):
        small.features(images())


def test_resnet18_from_a_file(resnet18_file):
    extractor = load_extractor(settings(network="resnet18", weights=str(resnet18_file)))
    assert (extractor.name, extractor.n_params) == ("resnet18", 11_176_512)
    assert extractor.digest == sha256_file(resnet18_file)
    assert extractor.features(images(n=3, size=32)).shape == (3, 512)


def test_auto_takes_a_given_file_for_resnet18(resnet18_file, offline):
    assert load_extractor(settings(network="auto", weights=str(resnet18_file))).name == "resnet18"
    assert not offline


def test_auto_takes_resnet18_from_the_hub_cache(resnet18_file, offline):
    cache = module._resnet18_cache()
    cache.parent.mkdir(parents=True)
    cache.write_bytes(resnet18_file.read_bytes())
    assert load_extractor(settings(network="auto")).name == "resnet18"
    assert not offline


def test_auto_falls_back_without_network_and_says_so(offline, caplog):
    with caplog.at_level(logging.WARNING):
        assert load_extractor(settings(network="auto")).name == "efficientnet_lite0"
    assert offline == [module.RESNET18_URL]
    assert "EfficientNet-Lite0, because ResNet18's weights cannot be downloaded" in caplog.text
    assert not module._resnet18_cache().exists()


def test_resnet18_without_network_is_one_clear_error(offline):
    with pytest.raises(ConfigError, match=r"'resnet18' has no weights: .*extractor.weights, or choose efficientnet"):
        load_extractor(settings(network="resnet18"))


def test_download_with_another_checksum_is_refused(offline, monkeypatch, tmp_path):
    page = tmp_path / "login.html"
    page.write_text("<html>please log in</html>")
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: open(page, "rb"))
    with pytest.raises(ConfigError, match="another checksum"):
        load_extractor(settings(network="resnet18"))
    assert not module._resnet18_cache().exists()


def test_missing_weights_file(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.pth does not exist; give the path"):
        load_extractor(settings(weights=str(tmp_path / "no.pth")))


@pytest.mark.parametrize(
    ("network", "share"),
    [("efficientnet_lite0", 0.0), ("efficientnet_lite0", 0.5), ("efficientnet_lite0", 0.999), ("resnet18", 0.999)],
)
def test_truncated_weights_file(tmp_path, resnet18_file, network, share):
    whole = (resnet18_file if network == "resnet18" else module._efficientnet_lite0_weights()).read_bytes()
    path = tmp_path / "cut.pth"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ConfigError, match=r"cut\.pth cannot be read as a PyTorch state dict .* truncated"):
        load_extractor(settings(network=network, weights=str(path)))


def test_weights_of_another_network(resnet18_file, tmp_path):
    with pytest.raises(ConfigError, match="weights of another network than efficientnet_lite0"):
        load_extractor(settings(weights=str(resnet18_file)))
    with pytest.raises(ConfigError, match="weights of another network than resnet18"):
        load_extractor(settings(network="auto", weights=str(module._efficientnet_lite0_weights())))
    torch.save(torch.zeros(3), tmp_path / "tensor.pth")
    with pytest.raises(ConfigError, match="weights of another network than resnet18"):
        load_extractor(settings(network="resnet18", weights=str(tmp_path / "tensor.pth")))


def test_stream_is_extracted_by_task_and_split(lite0):
    def split(n, seed):
        return SimpleNamespace(images=images(n, seed=seed), labels=np.arange(n) % 2)

    tasks = [
        SimpleNamespace(index=index, split={"valid": split(5, index), "train": split(7, 10 + index)}.__getitem__)
        for index in range(2)
    ]
    done = []
    arrays = extract_stream(SimpleNamespace(tasks=tasks), lite0, ("valid", "train"), done.append)
    assert sorted(arrays) == [
        f"{task}/{name}/{kind}" for task in "01" for name in ("train", "valid") for kind in ("features", "labels")
    ]
    np.testing.assert_array_equal(arrays["1/train/features"], lite0.features(images(7, seed=11)))
    np.testing.assert_array_equal(arrays["1/train/labels"], np.arange(7) % 2)
    assert sum(done) == 2 * (5 + 7)


def test_importing_the_module_needs_no_torch():
    code = "import sys, par.relatedness.extractor; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
