"""scikit-learn's verbs, for those who have pipelines around them. scikit-learn itself is not needed and not imported."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smope.classifier.pictures import is_one_picture
from smope.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from typing_extensions import Self

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)")
#: what may be changed after the first update
_ALWAYS = ("false_alarm", "progress")


class EstimatorVerbs:
    """`X` is a list of pictures (paths, PIL images, arrays) or an array N,H,W,3; `y` their classes.

    Where all of `y` are whole numbers, the classes are numbers in `predict` and `classes_` too; elsewhere they are the words of them.
    """

    _estimator_type = "classifier"  #: what scikit-learn before 1.6 asks for

    if TYPE_CHECKING:
        learn: Callable[..., Any]
        classify: Callable[..., Any]
        predict: Callable[..., Any]
        _forget_body: Callable[[], None]
        _begin_anew: Callable[[], None]
        _numbers: bool
        _asked: Callable[..., Any]

        @property
        def classes(self) -> list[str]: ...

    def fit(self, X: Iterable[Any], y: Iterable[Any]) -> Self:
        """Forget everything, and learn these pictures."""
        self._begin_anew()
        return self.partial_fit(X, y)

    def partial_fit(self, X: Iterable[Any], y: Iterable[Any], classes: Any = None) -> Self:
        """Learn more pictures. `classes` is not needed: they may come at any time."""
        self.learn(X, y)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """One row a picture, one column a class, in the order of `classes_`."""
        answers, names = self._asked([X] if is_one_picture(X) else X, far=False), self.classes
        rows = [dict([(answer.label, answer.probability), *answer.runners_up]) for answer in answers]
        return np.array([[row[name] for name in names] for row in rows]).reshape(len(rows), len(names))

    def score(self, X: Any, y: Iterable[Any]) -> float:
        """The share of pictures that are recognised."""
        answers, labels = self.predict([X] if is_one_picture(X) else X), _words(y)
        if len(answers) != len(labels) or not labels:
            raise DataError(f"{len(answers)} pictures were given {len(labels)} classes.", "Give one class a picture, and at least one.")
        return sum(str(answer) == label for answer, label in zip(answers, labels, strict=True)) / len(labels)

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes that can be predicted, in the order in which they were learned."""
        return np.array([self._value(name) for name in self.classes])

    def _value(self, name: str) -> str | int:
        """A class as it was given: a number, if classes are numbers."""
        return int(name) if self._numbers and _NUMBER.fullmatch(name) else name

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn wants to know of an estimator; only scikit-learn calls it."""
        tags = import_module("sklearn.utils")
        return tags.Tags(
            estimator_type="classifier",
            target_tags=tags.TargetTags(required=True),
            transformer_tags=None,
            regressor_tags=None,
            classifier_tags=tags.ClassifierTags(),
            input_tags=tags.InputTags(two_d_array=False, string=True),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return bool(self.classes)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What the classifier was made with."""
        return {name: getattr(self, name) for name in _parameters(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Change what it was made with; most of it only before anything is learned."""
        known = _parameters(type(self))
        for name, value in params.items():
            if name not in known:
                raise ConfigError(f"A classifier has no parameter '{name}'.", nearest(name, known))
            if name not in _ALWAYS and self.classes and value != getattr(self, name):
                raise ConfigError(f"'{name}' cannot change once classes are learned.", "Make a new classifier.")
        type(self)(**{**self.get_params(), **params})  # refuses what cannot be, before anything is changed
        for name, value in params.items():
            setattr(self, name, value)
        if not self.classes:
            self._forget_body()
        return self


def _parameters(kind: type) -> list[str]:
    return [name for name in inspect.signature(kind).parameters if name != "self"]


def paired(X: Iterable[Any], y: Iterable[Any]) -> tuple[list[tuple[Any, str]], bool]:
    """Pictures with their classes as words, and whether these are numbers."""
    pictures, labels = list(X), list(y)
    if len(pictures) != len(labels):
        raise DataError(f"{len(pictures)} pictures were given {len(labels)} classes.", "Give one class a picture.")
    numbers = bool(labels) and all(isinstance(label, (int, np.integer)) and not isinstance(label, bool) for label in labels)
    return list(zip(pictures, _words(labels), strict=True)), numbers


def _words(y: Iterable[Any]) -> list[str]:
    return [str(label) for label in y]
