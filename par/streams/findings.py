"""What was left aside, interpreted or noticed while a stream was built: counted, never only printed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from par.text import one_line

UNBALANCED = 10  # a class with less than a tenth of the largest one's training images is reported


@dataclass(frozen=True)
class Finding:
    """One thing found.

    ``kind`` is one of: left aside, note, classes in no task, class order, duplicates, constant images, equal images,
    unbalanced classes. ``where`` names the source or task, ``what`` says it in words, ``count`` is the number of files,
    images or classes that it is about, ``example`` one of them.
    """

    kind: str
    where: str
    what: str
    count: int
    example: str = ""

    def __str__(self) -> str:
        example = f", such as {one_line(self.example)}" if self.example else ""
        return f"{self.where}: {self.what.removesuffix('.')}{example}."


def counts_by_kind(findings: Iterable[Finding]) -> dict[str, int]:
    """The sum of the counts of every kind that occurs."""
    totals: dict[str, int] = {}
    for finding in findings:
        totals[finding.kind] = totals.get(finding.kind, 0) + finding.count
    return totals


def table(findings: Sequence[Finding]) -> str:
    """The findings as lines of text under a head: what, where, count, details."""
    rows = [("what", "where", "count", "details")]
    for finding in findings:
        details = finding.what + (f" (such as {finding.example})" if finding.example else "")
        rows.append((finding.kind, finding.where, str(finding.count), one_line(details)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def task_place(index: int, name: str) -> str:
    """How messages and findings name a task: its number and its name."""
    return f"task {index} ({one_line(name, 60)})"


def task_findings(
    index: int,
    name: str,
    class_names: Sequence[str],
    images: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
) -> list[Finding]:
    """What one task's images show: duplicates between splits, constant images, classes of equal images, imbalance.

    Args:
        images: split -> uint8 ``[n, 3, H, W]``, in the order train, valid, test.
        labels: split -> int64 ``[n]`` into ``class_names``.
    """
    place = task_place(index, name)
    digests = {
        split: np.array([hashlib.blake2b(image, digest_size=16).digest() for image in of_split], "S16")
        for split, of_split in images.items()
    }
    return [
        *_duplicates(place, digests),
        *_constant(place, images),
        *_equal(place, class_names, digests, labels),
        *_unbalanced(place, class_names, labels["train"]),
    ]


def _duplicates(place: str, digests: Mapping[str, np.ndarray]) -> list[Finding]:
    """Images that equal, pixel for pixel, one of an earlier split; no row of the source is in two splits."""
    findings, earlier = [], np.array([], "S16")
    for split, found in digests.items():
        if copies := int(np.isin(found, earlier).sum()):
            of = "a training" if split == "valid" else "a training or validation"
            what = f"{copies} of {len(found)} {split} images equal {of} image; they are duplicates inside the data set"
            findings.append(Finding("duplicates", place, what, copies))
        earlier = np.concatenate([earlier, found])
    return findings


def _constant(place: str, images: Mapping[str, np.ndarray]) -> list[Finding]:
    """Images of one colour."""
    findings = []
    for split, of_split in images.items():
        flat = of_split.reshape(*of_split.shape[:2], -1)
        if constant := int((flat.min(axis=2) == flat.max(axis=2)).all(axis=1).sum()):
            what = f"{constant} of {len(of_split)} {split} images have one colour in all pixels"
            findings.append(Finding("constant images", place, what, constant))
    return findings


def _equal(
    place: str, class_names: Sequence[str], digests: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]
) -> list[Finding]:
    """Classes whose images of a split, two or more, are all the same."""
    findings = []
    for split, found in digests.items():
        for label, class_name in enumerate(class_names):
            of_class = found[labels[split] == label]
            if len(of_class) > 1 and (of_class == of_class[0]).all():
                what = f"all {len(of_class)} {split} images of class {class_name!r} are equal"
                findings.append(Finding("equal images", place, what, len(of_class)))
    return findings


def _unbalanced(place: str, class_names: Sequence[str], train: np.ndarray) -> list[Finding]:
    """Classes with less than a tenth of the training images of the largest one."""
    counts = np.bincount(train, minlength=len(class_names))
    small = int((counts * UNBALANCED < counts.max()).sum())
    if not small:
        return []
    most, least = int(counts.argmax()), int(counts.argmin())
    what = (
        f"class {class_names[most]!r} has {counts[most]} training images, class {class_names[least]!r} "
        f"{counts[least]}; {small} of {len(class_names)} classes have less than a tenth of the largest"
    )
    return [Finding("unbalanced classes", place, what, small)]
