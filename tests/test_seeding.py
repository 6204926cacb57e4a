"""Random streams by name."""

from __future__ import annotations

import numpy as np

from par import seeding


def test_streams_are_reproducible_and_differ_by_every_name():
    assert seeding.derive(0, "order") == seeding.derive(0, "order")
    assert (
        len({seeding.derive(*names) for names in [(0, "a"), (0, "b"), (1, "a"), ("a", 0), ("0a",), ("0", "a", "")]})
        == 6
    )


def test_numpy_and_torch_streams():
    one, two = seeding.numpy_generator(3, "x"), seeding.numpy_generator(3, "x")
    assert np.array_equal(one.random(4), two.random(4))
    first, second = seeding.torch_generator(3, "x"), seeding.torch_generator(3, "x")
    assert first.initial_seed() == second.initial_seed() != seeding.torch_generator(3, "y").initial_seed()
