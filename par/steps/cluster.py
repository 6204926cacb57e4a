"""``cluster.yaml``: what a job asks of a SLURM cluster. Nothing of it decides what is learned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from par.config import resolve_path
from par.schema import ConfigError, Count, Positive, Range, check_plain, parse, read_yaml, shown

EXECUTOR = "PAR_EXECUTOR"  # the environment variable; also for what this process starts
EXECUTORS = ("local", "slurm")
CLUSTER_FILE = "cluster.yaml"


@dataclass(frozen=True)
class Cluster:
    """All of cluster.yaml; ``sbatch`` maps further options of sbatch to their values."""

    partition: str | None = None
    account: str | None = None
    constraint: str | None = None
    gpus: Annotated[int, Range(0, 1)] = 0  # of a job: a chain computes on one device
    cpus: Count = 1  # of a job, which computes on one thread
    memory_gb: Positive = 8.0
    hours: Positive = 24.0  # of a job; a step in progress saves itself every checkpoint_minutes of params.yaml
    parallelism: Count = 256  # jobs of one array that run at once
    max_array: Count = 1000  # jobs of one array; at most the cluster's MaxArraySize (scontrol show config)
    poll_seconds: Positive = 15.0  # between two questions to the scheduler
    setup: tuple[str, ...] = ()  # shell commands before each job
    sbatch: Mapping[str, Any] = field(default_factory=dict)


def read_cluster(path: Path) -> Cluster:
    """A cluster file.

    Raises:
        ConfigError: there is none, or it holds a value that is not allowed.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist, and the executor slurm needs it; copy cluster.example.yaml there.")
    cluster = parse(Cluster, read_yaml(path), path.name)
    check_plain(cluster.sbatch, "sbatch")
    for option, value in cluster.sbatch.items():
        if isinstance(value, (Mapping, list)):
            raise ConfigError(f"sbatch.{option} = {shown(value)} is no value of an option; give a text or a number.")
    return cluster


def cluster_in_use() -> Cluster | None:
    """The cluster that jobs are submitted to; None where they run on this machine.

    Raises:
        ConfigError: PAR_EXECUTOR is no executor, or see :func:`read_cluster`.
    """
    name = os.environ.get(EXECUTOR) or "local"
    if name not in EXECUTORS:
        raise ConfigError(f"{EXECUTOR} = {shown(name)} is no executor; choose one of {', '.join(EXECUTORS)}.")
    return read_cluster(resolve_path(CLUSTER_FILE)) if name == "slurm" else None
