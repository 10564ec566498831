"""scikit-learn's verbs, for those who have pipelines around them. scikit-learn itself is not needed and not imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smope.classifier.pictures import is_one_picture
from smope.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from typing_extensions import Self

#: what may be changed after the first update
_ALWAYS = ("false_alarm", "progress")


class EstimatorVerbs:
    """`X` is a list of pictures (paths, PIL images, arrays) or an array N,H,W,3; `y` their classes. Numbers in `y` become words."""

    if TYPE_CHECKING:
        learn: Callable[..., Any]
        classify: Callable[..., Any]
        predict: Callable[..., Any]
        _forget_body: Callable[[], None]
        _asked: Callable[..., Any]

        @property
        def classes(self) -> list[str]: ...

    def partial_fit(self, X: Iterable[Any], y: Iterable[Any], classes: Any = None) -> Self:
        """Learn more pictures. `classes` is not needed: they may come at any time."""
        pictures, labels = list(X), _words(y)
        if len(pictures) != len(labels):
            raise DataError(f"{len(pictures)} pictures were given {len(labels)} classes.", "Give one class a picture.")
        self.learn(list(zip(pictures, labels, strict=True)))
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
        return sum(bool(answer == label) for answer, label in zip(answers, labels, strict=True)) / len(labels)

    @property
    def classes_(self) -> NDArray[np.str_]:
        """The classes that can be predicted, in the order in which they were learned."""
        return np.array(self.classes, dtype=np.str_)

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


def _words(y: Iterable[Any]) -> list[str]:
    return [str(label) for label in y]
