"""cluster.yaml and the choice of an executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from par.schema import ConfigError
from par.steps.cluster import EXECUTOR, Cluster, cluster_in_use, read_cluster

EXAMPLE = Path(__file__).resolve().parents[2] / "cluster.example.yaml"


def test_the_example_has_every_key_with_its_default():
    assert read_cluster(EXAMPLE) == Cluster()
    text = EXAMPLE.read_text()
    assert all(f"\n{key}:" in text for key in Cluster.__dataclass_fields__)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partitions: gpu\n", ["partitions", "'gpu'", "not a known key", "partition"]),
        ("gpus: 8\n", ["gpus", "8", "between 0 and 1"]),
        ("hours: soon\n", ["hours", "'soon'", "a number"]),
        ("memory_gb: 0\n", ["memory_gb", "0", "above 0"]),
        ("setup: module load cuda\n", ["setup", "'module load cuda'", "a list of a text"]),
        ("max_array: 0\n", ["max_array", "0", "at least 1"]),
        ("sbatch:\n  qos: [a, b]\n", ["sbatch.qos", "['a', 'b']", "a text or a number"]),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, text, words):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_cluster(path)
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_executor_is_local_unless_the_environment_says_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.delenv(EXECUTOR, raising=False)
    assert cluster_in_use() is None
    monkeypatch.setenv(EXECUTOR, "slurm")
    with pytest.raises(ConfigError, match="cluster.yaml does not exist.*copy cluster.example.yaml"):
        cluster_in_use()
    (tmp_path / "cluster.yaml").write_text("partition: gpu\n")
    assert cluster_in_use() == Cluster(partition="gpu")
    monkeypatch.setenv(EXECUTOR, "pbs")
    with pytest.raises(ConfigError, match="PAR_EXECUTOR = 'pbs' is no executor; choose one of local, slurm"):
        cluster_in_use()
