"""Some of many, evenly spread."""

from __future__ import annotations

import pytest
import torch

from rookery.core.spread import spread


@pytest.mark.parametrize("width", [4, 16, 32, 37])
@pytest.mark.parametrize(("total", "num"), [(1_024, 64), (1_280, 160), (1_000, 999)])
def test_every_column_has_its_share_of_what_is_read_line_by_line(
    total: int, num: int, width: int
) -> None:
    some = spread(total, num)
    assert len(some) == num
    assert (some.diff() > 0).all()
    counts = torch.bincount(some % width, minlength=width)
    assert (counts - num / width).abs().max() < 3
    halves = torch.bincount(2 * some // total)
    assert (halves - num / 2).abs().max() <= 2


@pytest.mark.parametrize("total", [0, 3, 8])
def test_of_no_more_than_asked_for_all_are_taken(total: int) -> None:
    assert spread(total, 8).tolist() == list(range(total))
