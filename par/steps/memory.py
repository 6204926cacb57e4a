"""How much memory jobs will take at their fullest, and whether there is as much: said before hours are spent on them.

Nearly all of it is what the backward pass needs: the feature maps of a batch. They grow with the images of a batch,
their pixels and the networks' width; predicting takes less, in batches that are bounded (:mod:`par.training.memory`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import psutil
import torch

from par.steps.cluster import Cluster
from par.steps.estimate import Kind, kilobytes_per_pixel, kind_of_job
from par.steps.jobs import Job
from par.steps.routed_chain import lacking
from par.steps.slots import Workers
from par.steps.store import Store

GB = 1e9
PROCESS = 0.9 * GB  # Python, torch and a task's images; measured (sources.md#memory)


def peak_bytes(kind: Kind) -> float:
    """Bytes that a worker is resident with at the fullest moment of such a step, in float32; bfloat16 takes less."""
    return PROCESS + kind.batch * kind.size**2 * 1000 * kilobytes_per_pixel(kind)


def shortage(peaks: Sequence[float], workers: Workers, device: torch.device, cluster: Cluster | None) -> str | None:
    """A sentence where jobs may need more memory than there is: the largest of them side by side, as many as workers.

    Args:
        peaks: :func:`peak_bytes` of every job to compute.
    """
    if not peaks or (cluster is not None and cluster.gpus):  # nobody can ask the cards of a cluster
        return None
    if cluster is not None:
        side_by_side, room, where = 1, cluster.memory_gb * GB, "memory_gb of cluster.yaml is"
        remedy = f"set it to {math.ceil(max(peaks) / GB)}, or lower"
    else:
        side_by_side, room, where = _on_this_machine(workers, device)
        remedy = "lower `workers` or" if side_by_side > 1 else "lower"
    largest = sorted(peaks, reverse=True)[:side_by_side]
    if sum(largest) <= room:
        return None
    jobs = "the largest job needs" if len(largest) == 1 else f"the {len(largest)} largest jobs together need"
    return (
        f"{jobs} some {sum(largest) / GB:.1f} GB (an estimate), and {where} {room / GB:.1f}: "
        f"{remedy} recipe.batch_size in params.yaml, which changes what is learned."
    )


def shortage_of(
    jobs: Iterable[Job], store: Store, workers: Workers, device: torch.device, cluster: Cluster | None
) -> str | None:
    """:func:`shortage` of those of ``jobs`` that the store lacks."""
    kinds = [(job, kind) for job in jobs if (kind := kind_of_job(job)) is not None]
    if shortage([peak_bytes(kind) for _, kind in kinds], workers, device, cluster) is None:
        return None  # whatever the store has
    present = {path.stem for path in store.entries()}
    peaks = [peak_bytes(kind) for job, kind in kinds if lacking(job, store, present).entries]
    return shortage(peaks, workers, device, cluster)


def _on_this_machine(workers: Workers, device: torch.device) -> tuple[int, float, str]:
    """Jobs side by side, the bytes for them, and where."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return math.ceil(workers.count / max(1, workers.n_cards)), free, "free on the card are"
    return workers.count, psutil.virtual_memory().available, "free on this machine are"
