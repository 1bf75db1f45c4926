"""Sizes that vary: ranges of named dimensions, limits on their products, and a tensor's dimensions as expressions."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

MOST_DIVISOR = 64
MOST_POWER = 2


class SizeRange(msgspec.Struct, frozen=True):
    """A named dimension of the model's inputs that may be anything from `low` to `high`, both included."""

    name: str
    low: int
    high: int


class SizeLimit(msgspec.Struct, frozen=True):
    """The product of some named dimensions is at most `most`."""

    names: tuple[str, ...]
    most: int

    def __str__(self) -> str:
        """As a user writes it."""
        return f"{'*'.join(self.names)}<={self.most}"

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes keep it."""
        return math.prod(sizes[name] for name in self.names) <= self.most


class Dim(msgspec.Struct, frozen=True):
    """One dimension of a tensor for all sizes: (factor x product of names + offset) // divisor.

    A name may be there several times: that is its power. Without names it is the number `offset`.
    """

    names: tuple[str, ...] = ()
    factor: int = 1
    offset: int = 0
    divisor: int = 1

    def at(self, sizes: Mapping[str, int]) -> int:
        """Its value for given sizes."""
        if not self.names:
            return self.offset
        return (self.factor * math.prod(sizes[name] for name in self.names) + self.offset) // self.divisor

    @property
    def symbol(self) -> str | None:
        """The name that it is, and nothing more."""
        is_plain = len(self.names) == 1 and (self.factor, self.offset, self.divisor) == (1, 0, 1)
        return self.names[0] if is_plain else None

    def __str__(self) -> str:
        """As a user would write it: `seq`, `12 * batch * seq`, `(frames + 1) // 2`."""
        if not self.names:
            return str(self.offset)
        product = " * ".join((*([str(self.factor)] if self.factor != 1 else []), *self.names))
        total = f"{product} {'+' if self.offset > 0 else '-'} {abs(self.offset)}" if self.offset else product
        return total if self.divisor == 1 else f"({total}) // {self.divisor}"


Sample = tuple[Mapping[str, int], int]
"""Sizes, and the value that a dimension had for them."""


def fit_dim(samples: Sequence[Sample]) -> Dim | None:
    """The simplest expression that has the seen value for every sizes seen; None where there is none."""
    values = {value for _, value in samples}
    if len(values) == 1:
        return Dim(offset=values.pop())
    return next((dim for dim in _candidates(samples) if all(dim.at(sizes) == value for sizes, value in samples)), None)


def _candidates(samples: Sequence[Sample]) -> Iterator[Dim]:
    """Expressions that two of the samples suggest, the simplest first."""
    known = sorted(samples[0][0])
    powers = [
        names
        for count in range(1, MOST_POWER * len(known) + 1)
        for names in itertools.combinations_with_replacement(known, count)
        if max(names.count(name) for name in names) <= MOST_POWER
    ]
    for names in powers:
        yield from _linear(names, samples)
    for name in known:
        yield from _rounded(name, samples)


def _linear(names: tuple[str, ...], samples: Sequence[Sample]) -> Iterator[Dim]:
    products = [(math.prod(sizes[name] for name in names), value) for sizes, value in samples]
    first, second = next(((a, b) for a, b in itertools.combinations(products, 2) if a[0] != b[0]), ((0, 0), (0, 0)))
    if first[0] != second[0] and (second[1] - first[1]) % (second[0] - first[0]) == 0:
        factor = (second[1] - first[1]) // (second[0] - first[0])
        yield Dim(names, factor, first[1] - factor * first[0])


def _rounded(name: str, samples: Sequence[Sample]) -> Iterator[Dim]:
    sizes, value = samples[0]
    for divisor in range(2, MOST_DIVISOR + 1):
        least = value * divisor - sizes[name]
        for offset in range(least, least + divisor):
            yield Dim((name,), 1, offset, divisor)


class SizeFamily(msgspec.Struct, frozen=True):
    """All sizes that a model is compiled for. `fixed` are named dimensions of one size."""

    ranges: tuple[SizeRange, ...]
    limits: tuple[SizeLimit, ...] = ()
    fixed: dict[str, int] = {}

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes of all named dimensions belong to it."""
        in_range = all(each.low <= sizes[each.name] <= each.high for each in self.ranges)
        return in_range and all(limit.holds(sizes) for limit in self.limits)

    @property
    def corners(self) -> tuple[dict[str, int], ...]:
        """The largest sizes: none of the dimensions can grow alone; the one that plans are made for comes first.

        Without limits that is one, all maxima. With limits each dimension in turn takes all that it can, in both
        orders, so that extremes of a product are among them; first is the one with the largest product, then the one
        whose last-named dimension is longest.
        """
        found: dict[tuple[int, ...], dict[str, int]] = {}
        for order in itertools.permutations(self.ranges):
            sizes = {each.name: each.low for each in self.ranges} | self.fixed
            for each in order:
                sizes[each.name] = self._most(each, sizes)
            found[tuple(sizes[each.name] for each in self.ranges)] = sizes
        return tuple(sorted(found.values(), key=self._rank, reverse=True))

    def _rank(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        numbers = [sizes[each.name] for each in self.ranges]
        return max(numbers), math.prod(numbers)

    def _most(self, each: SizeRange, sizes: Mapping[str, int]) -> int:
        most = each.high
        for limit in (limit for limit in self.limits if each.name in limit.names):
            count = limit.names.count(each.name)
            rest = math.prod(sizes[name] for name in limit.names if name != each.name)
            while most > each.low and most**count * rest > limit.most:
                most = min(most - 1, max(each.low, int((limit.most / rest) ** (1 / count)) + 1))
        return most
