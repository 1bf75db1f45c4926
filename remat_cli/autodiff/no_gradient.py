"""Ops that no gradient flows through."""

from __future__ import annotations

# What they make is a constant for the gradient, even if it depends on something trained. A rule given for one of them
# (straight through Round, say) counts instead.
ZERO_GRADIENT = frozenset(
    {
        *("Shape", "Size", "ArgMax", "ArgMin", "NonZero", "NonMaxSuppression"),
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsInf", "IsNaN"),
        *("And", "Not", "Or", "Xor", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"),
        *("Ceil", "Floor", "Round", "Sign", "Hardmax"),
        *("Constant", "ConstantOfShape", "EyeLike", "OneHot", "Range"),
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    }
)
