"""What runs at many sizes showed, held against what was promised of all of them."""

import pytest

from remat_cli.core.values.family import FamilySeen, SizeSeen
from remat_cli.core.values.promises import KEPT_BYTES


def seen(*peaks: int, order: bool = True) -> FamilySeen:
    runs = tuple(SizeSeen({"seq": at}, True, peak, 2 * peak, order) for at, peak in enumerate(peaks, 1))
    return FamilySeen(100_000, runs)


@pytest.mark.parametrize(
    ("peaks", "excess"),
    [((90_000, 100_000), 0), ((100_000 + KEPT_BYTES, 5), 0), ((7, 100_001 + KEPT_BYTES), KEPT_BYTES + 1)],
)
def test_more_than_kernels_keep_is_told_with_its_size(peaks, excess):
    found = seen(*peaks)
    assert found.excess_bytes == excess
    broken = [check.line for check in found.checks if check.promise.kept is False]
    assert len(broken) == (excess > 0)
    assert all("at seq=2 runs held" in line for line in broken)


def test_another_order_at_some_size_is_told():
    broken = [check.line for check in seen(5, 6, order=False).checks if check.promise.kept is False]
    assert broken == ["at seq=1 ops run in another order"]
