from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from par.cells.genotype import (
    DARTS_V1,
    DARTS_V2,
    EDGES,
    GENOTYPE_OPERATIONS,
    KINDS,
    Genotype,
    from_json,
    random_genotype,
)


def raw() -> dict:
    return DARTS_V1.to_json()


@pytest.mark.parametrize("genotype", [DARTS_V1, DARTS_V2, random_genotype(np.random.default_rng(3))])
def test_json_round_trip(genotype):
    assert from_json(json.loads(json.dumps(genotype.to_json()))) == genotype


def test_genotypes_are_keys():
    assert len({DARTS_V1, DARTS_V2, from_json(DARTS_V1.to_json())}) == 2


def test_edges_are_fourteen_in_order():
    assert len(EDGES) == 14
    assert EDGES[:5] == ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2)) and EDGES[-1] == (3, 4)


def test_random_genotypes_are_uniform():
    generator = np.random.default_rng(0)
    operations, pairs = Counter(), Counter()
    for _ in range(1000):
        genotype = random_genotype(generator)
        for kind in KINDS:
            for index, node in enumerate(getattr(genotype, kind)):
                operations.update(operation for operation, _ in node)
                pairs[index, frozenset(predecessor for _, predecessor in node)] += 1
    assert set(operations) == set(GENOTYPE_OPERATIONS)
    assert all(3000 <= count <= 3400 for count in operations.values())  # 16,000 / 5 = 3,200, sd 51
    for index, n_pairs in enumerate((1, 3, 6, 10)):
        counts = [count for (node, _), count in pairs.items() if node == index]
        assert len(counts) == n_pairs
        assert all(abs(count - 2000 / n_pairs) < 90 for count in counts)


def test_random_genotype_depends_on_the_generator_alone():
    first, second = (random_genotype(np.random.default_rng(5)) for _ in range(2))
    assert first == second != random_genotype(np.random.default_rng(6))


def change(path: tuple, value: object) -> dict:
    changed = raw()
    target = changed
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    "broken, message",
    [
        ([1, 2], r"Genotype JSON holds \[1, 2\]; give it exactly the keys 'normal' and 'reduce'\."),
        ({"normal": raw()["normal"]}, r"Genotype JSON holds the keys \['normal'\]; give it exactly"),
        (raw() | {"extra": 1}, r"holds the keys \['extra', 'normal', 'reduce'\]"),
        (change(("normal",), 7), r"Genotype cell 'normal' is 7; give it a list of nodes"),
        (change(("normal", 0, 0), ["sep_conv_3x3"]), r"give it a list of nodes, each of two pairs"),
        (change(("reduce",), raw()["reduce"][:3]), r"Genotype cell 'reduce' has 3 nodes; give it exactly 4\."),
        (change(("reduce", 2), raw()["reduce"][2][:1]), r"cell 'reduce', node 2 has 1 inputs; give it exactly 2\."),
        (change(("normal", 1, 0, 0), "none"), r"node 1 has operation 'none'; choose one of max_pool_3x3, "),
        (change(("normal", 1, 0, 0), "sep_conv_5x5"), r"has operation 'sep_conv_5x5'; choose one of"),
        (change(("normal", 1, 0, 1), 3), r"node 1 has predecessor 3; choose a whole number from 0 to 2\."),
        (change(("normal", 1, 0, 1), -1), r"has predecessor -1; choose a whole number"),
        (change(("normal", 1, 0, 1), 1.0), r"has predecessor 1\.0; choose a whole number"),
        (change(("normal", 1, 0, 1), True), r"has predecessor True; choose a whole number"),
        (change(("normal", 1, 0, 1), 1), r"node 1 uses predecessor 1 twice; choose two different ones\."),
    ],
)
def test_broken_json_is_one_sentence(broken, message):
    with pytest.raises(ValueError, match=message) as error:
        from_json(broken)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


def test_unhashable_operation_is_refused():
    with pytest.raises(ValueError, match=r"has operation \['max_pool_3x3'\]"):
        from_json(change(("normal", 0, 0, 0), ["max_pool_3x3"]))


def test_genotype_is_validated_without_json_too():
    with pytest.raises(ValueError, match="has 0 nodes"):
        Genotype(normal=(), reduce=DARTS_V1.reduce)


def test_imports_no_torch():
    script = "import sys, par.cells.genotype; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
