"""Formulas in plain Python numbers, as slow and as plain as they stand in a paper."""

import math


def dot(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def cosine(one, other):
    return dot(one, other) / (math.hypot(*one) * math.hypot(*other))


def softmax(values):
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def best(values, k):
    """The places of the k largest, the lower place first where two are equal."""
    return sorted(range(len(values)), key=lambda place: (-values[place], place))[:k]
