"""Sizes that vary: ranges of named dimensions, limits on them, and a tensor's dimensions as expressions."""

import bisect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated

import msgspec
import numpy as np

MOST_DIVISOR = 64
MOST_POWER = 2
MOST_TERMS = 2
MOST_TURNS = MOST_POWER + 2
MOST_DECIDING = 20_000  # sizes of which two dimensions are asked whether they are the same
MOST_FRACTION = 4096  # the 64th part of a height times that of a width


class SizeRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named dimension of the model's inputs that may be `low`, `low` + `step` and so on up to `high`, included."""

    name: str
    low: int
    high: int
    step: Annotated[int, msgspec.Meta(ge=1)] = 1

    def __str__(self) -> str:
        """As a user writes it."""
        return f"{self.name}={self.low}..{self.high}{'' if self.step == 1 else f':{self.step}'}"

    @property
    def sizes(self) -> range:
        """All sizes that it may have."""
        return range(self.low, self.high + 1, self.step)

    def down_from(self, size: int) -> int:
        """The largest of its sizes that is no larger; the least where there is none."""
        return self.sizes[max(0, bisect.bisect_right(self.sizes, size) - 1)]

    def up_from(self, size: int) -> int:
        """The least of its sizes that is no smaller; the largest where there is none."""
        return self.sizes[min(len(self.sizes) - 1, bisect.bisect_left(self.sizes, size))]


class SizeLimit(msgspec.Struct, frozen=True):
    """A sum of products of named dimensions is at most `most`."""

    products: tuple[tuple[str, ...], ...]
    most: int

    def __str__(self) -> str:
        """As a user writes it."""
        return f"{'+'.join(map('*'.join, self.products))}<={self.most}"

    @property
    def names(self) -> tuple[str, ...]:
        """The dimensions that it speaks of."""
        return tuple(dict.fromkeys(name for names in self.products for name in names))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes keep it."""
        return sum(math.prod(sizes[name] for name in names) for names in self.products) <= self.most


def products_told(text: str) -> tuple[tuple[str, ...], ...]:
    """The products of names whose sum a text says: `batch*past+batch*seq`; a name that is missing is empty."""
    return tuple(tuple(name.strip() for name in product.split("*")) for product in text.split("+"))


class Term(msgspec.Struct, frozen=True, omit_defaults=True):
    """A factor times a product of named dimensions; a name may be there several times: that is its power."""

    names: tuple[str, ...]
    factor: int = 1

    def at(self, sizes: Mapping[str, int]) -> int:
        """Its value for given sizes."""
        return self.factor * math.prod(sizes[name] for name in self.names)

    def __str__(self) -> str:
        """As a user would write it."""
        return " * ".join((*([str(self.factor)] if self.factor != 1 else []), *self.names))


class Dim(msgspec.Struct, frozen=True, omit_defaults=True):
    """One dimension of a tensor for all sizes: times * ((sum of terms + offset) // divisor) + plus.

    A number has no terms; without a divisor there is nothing behind it either. With `within` it is that for sizes
    within a bound only, and 0 for all others.
    """

    terms: tuple[Term, ...] = ()
    offset: int = 0
    divisor: int = 1
    times: int = 1
    plus: int = 0
    within: "SizeBound | None" = None

    def at(self, sizes: Mapping[str, int]) -> int:
        """Its value for given sizes."""
        if self.within is not None and not self.within.holds(sizes):
            return 0
        return self.times * ((sum(term.at(sizes) for term in self.terms) + self.offset) // self.divisor) + self.plus

    def and_more(self, count: int) -> "Dim":
        """So much more, or less, for all sizes."""
        if self.times == 1:
            return msgspec.structs.replace(self, offset=self.offset + count * self.divisor)
        return msgspec.structs.replace(self, plus=self.plus + count)

    @property
    def names(self) -> frozenset[str]:
        """The named dimensions that it depends on."""
        found = frozenset(name for term in self.terms for name in term.names)
        return found if self.within is None else found.union(*(each.names for each in self.within.factors))

    @property
    def symbol(self) -> str | None:
        """The name of a dimension that is just that; None for other expressions."""
        is_plain = len(self.terms) == 1 and self == Dim((Term(self.terms[0].names),))
        return self.terms[0].names[0] if is_plain and len(self.terms[0].names) == 1 else None

    def __str__(self) -> str:
        """As a user would write it: `seq`, `12 * batch * seq`, `past + seq`, `2 * ((frames + 1) // 2) - 1`."""
        if not self.terms:
            return str(self.offset)
        total = " + ".join(map(str, self.terms)).replace("+ -1 * ", "- ").replace("+ -", "- ")
        total += _more(self.offset)
        total = total if self.divisor == 1 else f"({total}) // {self.divisor}"
        total = (total if self.times == 1 else f"{self.times} * ({total})") + _more(self.plus)
        return total if self.within is None else f"{total} if {self.within} else 0"


def _more(count: int) -> str:
    return f" {'+' if count > 0 else '-'} {abs(count)}" if count else ""


def product_of(dims: Iterable[Dim]) -> dict[tuple[str, ...], int]:
    """A product of dimensions as factors of products of names; what is divided counts as a name of its own."""
    total: dict[tuple[str, ...], int] = {(): 1}
    for dim in dims:
        terms: list[tuple[tuple[str, ...], int]] = [(term.names, term.factor) for term in dim.terms]
        terms += [((), dim.offset)] if dim.offset else []
        terms = terms if dim.divisor == 1 else [((str(dim),), 1)]
        new: dict[tuple[str, ...], int] = {}
        for (names, factor), (others, more) in itertools.product(total.items(), terms):
            key = tuple(sorted((*names, *others)))
            new[key] = new.get(key, 0) + factor * more
        total = new
    return total


class SizeBound(msgspec.Struct, frozen=True):
    """Sizes for which the product of some dimensions, which grow with sizes, is at most `most`."""

    factors: tuple[Dim, ...]
    most: int

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes are among them."""
        return math.prod(factor.at(sizes) for factor in self.factors) <= self.most

    def __str__(self) -> str:
        """As a user would write it."""
        factors = (f"({each})" if each.symbol is None and each.terms else str(each) for each in self.factors)
        return f"{' * '.join(factors)} <= {self.most}"


def number(value: int) -> Dim:
    """A dimension of one size."""
    return Dim(offset=value)


Sample = tuple[Mapping[str, int], int]
"""Sizes, and the value that a dimension had for them."""


def fit_dim(samples: Sequence[Sample]) -> Dim | None:
    """The simplest expression that has the seen value for all sizes seen; None where there is none."""
    values = {value for _, value in samples}
    if len(values) == 1:
        return number(values.pop())
    return next((dim for dim in _candidates(samples) if all(dim.at(sizes) == value for sizes, value in samples)), None)


def _candidates(samples: Sequence[Sample]) -> Iterator[Dim]:
    """Expressions that some of the samples suggest, the simplest first."""
    known = sorted(name for name in samples[0][0] if len({sizes[name] for sizes, _ in samples}) > 1)
    products = [
        names
        for count in range(1, MOST_POWER * len(known) + 1)
        for names in itertools.combinations_with_replacement(known, count)
        if max(names.count(name) for name in names) <= MOST_POWER
    ]
    # Factors of products and an offset by least squares; fractions become whole numbers and a divisor.
    values = np.array([value for _, value in samples])
    counts = range(1, min(MOST_TERMS, len(samples) - 2) + 1)
    for chosen in itertools.chain.from_iterable(itertools.combinations(products, most) for most in counts):
        rows = [[*(math.prod(sizes[name] for name in names) for names in chosen), 1] for sizes, _ in samples]
        factors, _, rank, _ = np.linalg.lstsq(np.array(rows, float), values, rcond=None)
        if rank == len(chosen) + 1:
            found = [Fraction(float(factor)).limit_denominator(MOST_FRACTION) for factor in factors]
            divisor = math.lcm(*(each.denominator for each in found))
            *whole, offset = (int(each * divisor) for each in found)
            if all(whole):
                yield Dim(tuple(map(Term, chosen, whole)), offset, divisor)
    sizes, value = samples[0]
    for name in known:
        for divisor in range(2, MOST_DIVISOR + 1):
            least = value * divisor - sizes[name]
            for offset in range(least, least + divisor):
                yield Dim((Term((name,)),), offset, divisor)


def fit_multiple(samples: Sequence[Sample], known: Iterable[Dim]) -> Dim | None:
    """A multiple of a length that is divided, and so many more, that has the seen value for all sizes seen.

    Such are the distances between positions of a sound: `2 * ((frames + 7) // 8) - 1`. None where there is none.
    """
    for dim in (each for each in known if each.divisor > 1 and each.times == 1 and each.within is None):
        pairs = [(dim.at(sizes), value) for sizes, value in samples]
        (low, first), (high, last) = min(pairs), max(pairs)
        times = (last - first) // max(1, high - low)
        found = msgspec.structs.replace(dim, times=times).and_more(first - times * low)
        if times > 0 and all(found.at(sizes) == value for sizes, value in samples):
            return found
    return None


class SizeFamily(msgspec.Struct, frozen=True):
    """All sizes that a model is compiled for. `fixed` are named dimensions of one size."""

    ranges: tuple[SizeRange, ...]
    limits: tuple[SizeLimit, ...] = ()
    fixed: dict[str, int] = {}

    def __str__(self) -> str:
        """As a user writes it: `batch=1..4; seq=1..1024; batch*seq<=2048`."""
        fixed = (f"{name}={size}" for name, size in self.fixed.items())
        return "; ".join((*map(str, self.ranges), *fixed, *map(str, self.limits)))

    def left_by(self, sizes: Mapping[str, int]) -> SizeRange | SizeLimit | None:
        """The first range or limit that sizes are outside of; None where they belong to it, as far as they are said."""
        known = {**self.fixed, **sizes}
        for each in self.ranges:
            if each.name in known and known[each.name] not in each.sizes:
                return each
        limits = (limit for limit in self.limits if known.keys() >= set(limit.names))
        return next((limit for limit in limits if not limit.holds(known)), None)

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes of all named dimensions belong to it."""
        in_range = all(sizes[each.name] in each.sizes for each in self.ranges)
        return in_range and all(limit.holds(sizes) for limit in self.limits)

    @property
    def least(self) -> dict[str, int]:
        """The least size of each named dimension."""
        return {each.name: each.low for each in self.ranges} | self.fixed

    def is_never_zero(self, dim: Dim) -> bool:
        """Whether a dimension is at least one for all sizes: it grows with them, and is that for the least."""
        grows = dim.within is None and dim.times > 0 and all(term.factor > 0 for term in dim.terms)
        return grows and dim.at(self.least) > 0

    def has_rest(self, dims: Sequence[Dim]) -> bool:
        """Whether one of a tensor's lengths is what the others leave, for all sizes: not where others may be zero."""
        return all(self.least.values()) or all(map(self.is_never_zero, dims))

    def agree(self, one: Dim, other: Dim, factor: int = 1) -> bool:
        """Whether one is so many times the other for all sizes; also false where that would take long to say.

        What is divided comes again after as many sizes as the divisor, so that a few such turns say it of all.
        """
        if one.within or other.within:
            return one == other and factor == 1
        turn, names = math.lcm(one.divisor, other.divisor), one.names | other.names
        ranges = [each for each in self.ranges if each.name in names]
        sizes = [each.sizes[: MOST_TURNS * (turn // math.gcd(turn, each.step))] for each in ranges]
        if math.prod(map(len, sizes)) > MOST_DECIDING:
            return False
        chosen = (dict(zip([each.name for each in ranges], found, strict=True)) for found in itertools.product(*sizes))
        return all(one.at(self.fixed | found) == factor * other.at(self.fixed | found) for found in chosen)

    def unified(self, dims: Mapping[str, tuple[Dim, ...]]) -> dict[str, tuple[Dim, ...]]:
        """The same dimensions, of which those that are the same for all sizes are written alike."""
        known, written = dict[tuple[frozenset[str], int], list[Dim]](), dict[Dim, Dim]()
        for dim in dict.fromkeys(dim for shape in dims.values() for dim in shape):
            alike = known.setdefault((dim.names, dim.at(self.corners[0] | self.fixed)), [])
            written[dim] = next((each for each in alike if dim.terms and self.agree(dim, each)), dim)
            if written[dim] is dim:
                alike.append(dim)
        return {name: tuple(written[dim] for dim in shape) for name, shape in dims.items()}

    @property
    def corners(self) -> tuple[dict[str, int], ...]:
        """The largest sizes: none of the dimensions can grow alone; the one that plans are made for comes first.

        Without limits that is one, all maxima. With limits each dimension in turn takes all that it can, in both
        orders, so that extremes of a product are among them. First is the one with the longest dimension, then the one
        with the largest product; where a sum is limited it is the other way round, as most is held where both are long.
        """
        return self._corners(None)

    def corners_within(self, bound: SizeBound) -> tuple[dict[str, int], ...]:
        """The largest sizes within a bound; none where the least are not within it."""
        return tuple(sizes for sizes in self._corners(bound) if bound.holds(sizes))

    def _corners(self, bound: SizeBound | None) -> tuple[dict[str, int], ...]:
        found: dict[tuple[int, ...], dict[str, int]] = {}
        for order in itertools.permutations(self.ranges):
            sizes = self.least
            for each in order:
                sizes[each.name] = self._most(each, sizes, bound)
            found[tuple(sizes[each.name] for each in self.ranges)] = sizes
        has_sums = any(len(limit.products) > 1 for limit in self.limits)
        measures = (math.prod, max) if has_sums else (max, math.prod)
        largest_first = sorted(found, key=lambda numbers: [measure(numbers) for measure in measures], reverse=True)
        return tuple(found[numbers] for numbers in largest_first)

    def _most(self, each: SizeRange, sizes: Mapping[str, int], bound: SizeBound | None) -> int:
        """The most that a dimension may be beside sizes of the others; its least where even that breaks a limit."""
        limits = [limit for limit in self.limits if each.name in limit.names]
        most = _last(each.sizes, lambda size: all(limit.holds({**sizes, each.name: size}) for limit in limits))
        if bound is None:
            return most
        return _last(range(each.low, most + 1, each.step), lambda size: bound.holds({**sizes, each.name: size}))


def _last(rising: Sequence[int], holds: Callable[[int], bool]) -> int:
    """Bisect rising numbers for the last for which something holds, which fails for all behind it; else the first."""
    return rising[max(0, bisect.bisect_left(rising, True, key=lambda size: not holds(size)) - 1)]


def dim_told(text: str) -> Dim | None:
    """The dimension that a text says as a sum of products of names and numbers: `past + seq`, `2*batch + 1`.

    Exporters write such names themselves. None where a text is no such sum, or the name of one dimension.
    """
    terms, offset = list[Term](), 0
    for sign, part in _SUMMAND.findall(text):
        names, factor = list[str](), -1 if sign == "-" else 1
        for each in (word.strip() for word in part.split("*")):
            if each.isdecimal():
                factor *= int(each)
            elif _NAME.fullmatch(each):
                names.append(each)
            else:
                return None
        if names:
            terms.append(Term(tuple(names), factor))
        else:
            offset += factor
    found = Dim(tuple(terms), offset)
    return None if found.symbol is not None or not terms else found


_SUMMAND = re.compile(r"(^|[+-])([^+-]*)")
_NAME = re.compile(r"[^\W\d][\w.]*")
_TOLD = re.compile(r"(.+?)(?:=([0-9]+)(?:\.\.([0-9]+)(?::([0-9]+))?)?|<=([0-9]+))(?:; |$)")
"""One part of the text of a family: a name with a size or a range, or names with a limit."""


def family_told(text: str) -> SizeFamily | None:
    """The family that a text says, as it was written by `str`; None where it is none."""
    ranges, limits, fixed = [], [], {}
    for name, low, high, step, most in _TOLD.findall(text):
        if most:
            limits.append(SizeLimit(products_told(name), int(most)))
        elif high:
            ranges.append(SizeRange(name, int(low), int(high), int(step or 1)))
        else:
            fixed[name] = int(low)
    found = SizeFamily(tuple(ranges), tuple(limits), fixed)
    return found if str(found) == text and ranges else None
