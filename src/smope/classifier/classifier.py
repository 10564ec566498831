"""The practitioner's object: teach it pictures, again and again; ask it; keep it in one file.

>>> clf = ContinualClassifier()                     # doctest: +SKIP
>>> print(clf.learn("photos/january"))              # doctest: +SKIP
>>> clf.learn("photos/march"); clf.save("shop.smope")   # doctest: +SKIP
>>> clf.predict("kettle.jpg")                       # doctest: +SKIP
'kettle'
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smope.classifier import adapter, teaching
from smope.classifier.adapter import AdapterError, Document, Entry
from smope.classifier.calibration import Calibration
from smope.classifier.checking import CheckReport, check
from smope.classifier.choosing import Experts, experts
from smope.classifier.comparing import Difference, difference
from smope.classifier.conditions import Conditions, check_canaries
from smope.classifier.estimator import EstimatorVerbs, paired
from smope.classifier.forgetting import Receipt, removed
from smope.classifier.frozen import embody, embody_stored
from smope.classifier.inputs import COLUMNS, listed, read_all
from smope.classifier.knowledge import Body, Knowledge, from_document, to_document, to_tensors
from smope.classifier.looking import check_it_sees, question, see, view, views
from smope.classifier.pictures import Picture, is_one_picture
from smope.classifier.scoring import Score, score
from smope.classifier.settings import AUTO, differences
from smope.classifier.sharing import SharingVerbs
from smope.classifier.updates import UpdateReport, describe_calibration
from smope.data import Skipped
from smope.data.decoding import Pixels
from smope.errors import ConfigError, DataError
from smope.files import resolved
from smope.progress import SILENT, Progress


@dataclass(frozen=True)
class Answer:
    """What the classifier says of one picture."""

    label: str  #: the most probable class, also where the picture may be none of these
    probability: float
    runners_up: tuple[tuple[str, float], ...]  #: the next classes with their probabilities, best first
    unknown: bool | None  #: whether it is none of these; None while too few pictures were held back to say
    calibrated: bool  #: whether probabilities were fitted to held-back pictures


class ContinualClassifier(EstimatorVerbs, SharingVerbs):
    """An image classifier that learns new classes at any time, without the old pictures.

    `backbone="auto"` takes the best one that can be had here; `image_size` is the side of what it sees (112 or 84 is faster than 224).
    `false_alarm` is the share of known pictures that may be called "none of these". `overrides` change the packaged document
    `_classifier.yaml`, such as `["train.epochs=10"]`. The backbone is loaded when it is first needed.
    """

    def __init__(
        self,
        backbone: str = AUTO,
        *,
        method: str = "linear",
        image_size: int = 224,
        seed: int = 0,
        false_alarm: float = 0.05,
        overrides: Sequence[str] = (),
        backbone_file: str | Path | None = None,
        progress: Progress = SILENT,
    ) -> None:
        if not 0 < false_alarm < 1:
            raise ConfigError(f"A false-alarm rate of {false_alarm} is no share.", "Give a number between 0 and 1, such as 0.05.")
        self.backbone = backbone
        self.method = method
        self.image_size = image_size
        self.seed = seed
        self.false_alarm = false_alarm
        self.overrides = overrides
        self.backbone_file = backbone_file
        self.progress = progress
        self._body: Body | None = None
        self._knowledge: Knowledge | None = None
        self._before: Knowledge | None = None
        self._file: Path | None = None
        self._notes: tuple[str, ...] = ()
        self._numbers = False  # whether classes were given as whole numbers

    # -- learning --------------------------------------------------------------------------------------------------------

    def learn(
        self,
        source: Any,
        y: Iterable[Any] | None = None,
        *,
        columns: tuple[str, str] = COLUMNS,
        keep_at_least: float | None = None,
        must_stay: Any = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> UpdateReport:
        """Learn the pictures of `source`, and say what that did.

        `source` is a folder of class folders, a zip file of one, a CSV or a data frame with the columns `path` and `label` (or those
        named by `columns`), a dict of class and pictures, a torch Dataset, or a list of (picture, class); with `y`, which are the
        classes, a list of pictures. A picture is a path, bytes, a PIL image, an array or a tensor. Classes may be new or known.
        Whatever goes wrong, the classifier is as before.

        With `keep_at_least=95` an update after which an old class is recognised less than 95 % as often as before is refused
        (`UpdateRefused`). `must_stay` are labelled pictures, in any form that `source` has: an update that gets one of them wrong that
        was right is refused too.
        """
        rules = Conditions.of(keep_at_least)
        canaries = listed(must_stay) if must_stay is not None else None
        numbers = self._numbers
        if y is not None:
            source, numbers = paired(source, y)
            numbers = numbers and (self._numbers or not self.classes)
        named = listed(source, columns)
        body, known = self._ready(), self._known()
        began = time.monotonic()
        found = read_all(named, body.transform.size, self.progress)
        del named  # only the reduced pictures are held while it learns
        taught, report = teaching.learn(body, known, found, self.progress, stop)
        rules.check(report)
        if canaries is not None:
            check_canaries(canaries, self, self._with(taught))
        self._change(taught)
        self._numbers = numbers
        notes, self._notes = self._notes, ()
        return replace(report, notes=(*report.notes, *notes), seconds=time.monotonic() - began)

    def rename(self, old: str, new: str) -> None:
        """Give a class another name."""
        self._change(teaching.rename(self._known(), old, new))

    def remove(self, name: str) -> Receipt:
        """Take a class out: it is never predicted again, and what was remembered of it is gone. The receipt says what is left."""
        known = self._known()
        (row,) = known.labels.rows([name])
        self._change(teaching.remove(self._ready(), known, name))
        return removed(known, name, row)

    def forget(self, picture: Picture, name: str | None = None) -> Receipt:
        """Take out one picture that was taught, as if it never had been. It must be the very picture; `name` is its class.

        The class is needed only where a file of an older smope does not list its pictures. With its last picture a class is gone.
        """
        less, receipt = teaching.forget(self._ready(), self._known(), picture, name)
        self._change(less)
        return receipt

    def __add__(self, other: ContinualClassifier) -> ContinualClassifier:
        """Return a classifier that knows what both know, as if one had learned all pictures. Both need one backbone and one head."""
        if not isinstance(other, ContinualClassifier):
            return NotImplemented
        made = self._with(teaching.add(self._ready(), self._known(), other._ready(), other._known()))
        made._before, made._file = None, None
        return made

    def merge(self, name: str, into: str) -> None:
        """Make class `name` a part of class `into`."""
        self._change(teaching.merge(self._ready(), self._known(), name, into, self.progress))

    def undo(self, to: int | None = None) -> None:
        """Go back one change, or to how it was after change `to`: an update, a rename, a removal and so on each count as one.

        One step is kept in memory; after it come the file that this was loaded from, and the five kept beside it.
        """
        if to is not None:
            self._undo_to(to)
            return
        if self._before is not None:
            self._knowledge, self._before = self._before, None
            return
        earlier = self._stored_before()
        if earlier is None:
            raise AdapterError("There is no update to go back on.", "One step is kept in memory, and five beside the file.")
        self._knowledge = earlier

    def _undo_to(self, number: int) -> None:
        now = len(self.history)
        if number == now:
            return
        if self._before is not None and len(self._before.history) == number:
            self._knowledge, self._before = self._before, None
            return
        earlier = self._stored_before(number)
        if earlier is None:
            raise AdapterError(f"The classifier as it was after change {number} is not kept.", "See: smope log FILE.smope")
        self._knowledge, self._before = earlier, None

    def check(self, source: Any) -> CheckReport:
        """Look at pictures before they are taught, and change nothing: wrong labels, confusions, near duplicates, poor pictures."""
        named = listed(source)
        body, known = self._ready(), self._known()
        found = read_all(named, body.transform.size, self.progress)
        return check(body, known, found, dict(found.names), self.progress)

    def evaluate(self, source: Any) -> Score:
        """Ask about labelled pictures that were not learned, in any form that `learn` takes, and count what is right."""
        return score(self, source, self.progress)

    # -- asking ----------------------------------------------------------------------------------------------------------

    def predict(self, pictures: Any, *, none_of_these: str | None = None) -> Any:
        """The class of a picture, or a list of them for many (any iterable; it is read in batches).

        With `none_of_these` that word is the answer for pictures that are too far from every class.
        """
        if none_of_these is not None and self.threshold is None:
            known = self._knowledge
            raise (known.calibration if known else Calibration()).refusal(self.false_alarm, known.labels.names if known else ())
        answers = self._asked(pictures, far=none_of_these is not None)
        if isinstance(answers, Answer):
            return self._word(answers, none_of_these)
        return [self._word(answer, none_of_these) for answer in answers]

    def classify(self, pictures: Any) -> Any:
        """An `Answer` for a picture, or a list of them for many."""
        return self._asked(pictures, far=True)

    def stream(self, pictures: Iterable[Picture], far: bool = True) -> Iterator[tuple[str, Answer | Skipped]]:
        """Name and `Answer` of each picture, in order, as they come; what cannot be read is answered with the reason.

        Without `far` no answer says whether the picture is none of these, which saves a pass through the backbone.
        """
        if not self.classes:  # told before anybody waits for a backbone
            raise DataError("This classifier knows no class yet.", "Teach it first, with learn.")
        body = self._ready()
        for part in views(body.transform, pictures, body.config.eval_batch_size):
            answers = iter(self.answers([seen for _, seen in part if not isinstance(seen, Skipped)], far))
            for name, seen in part:
                yield name, seen if isinstance(seen, Skipped) else next(answers)

    def view(self, picture: Picture, name: str) -> Pixels:
        """The square that the backbone sees of a picture, for `answers`; a DataError names the picture."""
        return view(self._ready().transform, picture, name)

    def answers(self, views: Sequence[Pixels], far: bool = True) -> list[Answer]:
        """An `Answer` for each view, in one batch; `far` as for `stream`."""
        if not views:
            return []
        body, known, names, calibrated = self._ready(), self._known(), self.classes, self.calibrated
        threshold = self.threshold if far else None
        asked = question(body, known, torch.from_numpy(np.stack(views)))
        logits_BC, distance_B = see(body, known, asked, far=threshold is not None)
        live_BC = logits_BC[:, known.labels.rows(names)].double()
        probability_BC = (live_BC / self._temperature()).softmax(1)
        order_BC = probability_BC.argsort(dim=1, descending=True, stable=True)
        unknown = [None] * len(views) if threshold is None or distance_B is None else (distance_B > threshold).tolist()
        answers = []
        for order, probability, strange in zip(order_BC.tolist(), probability_BC.tolist(), unknown, strict=True):
            best, *others = [(names[place], probability[place]) for place in order]
            answers.append(Answer(*best, tuple(others), strange, calibrated))
        return answers

    @property
    def threshold(self) -> float | None:
        """The distance from the nearest class beyond which a picture is none of these; None while there is too little to say."""
        return self._knowledge.calibration.threshold(self.false_alarm) if self._knowledge else None

    # -- what it knows ---------------------------------------------------------------------------------------------------

    @property
    def classes(self) -> list[str]:
        """The classes that can be predicted, in the order in which they were learned."""
        return self._knowledge.labels.live if self._knowledge else []

    @property
    def counts(self) -> dict[str, int]:
        """How many pictures of each class were learned."""
        return self._knowledge.counts if self._knowledge else {}

    @property
    def history(self) -> tuple[Entry, ...]:
        """What was done, in order."""
        return self._knowledge.history if self._knowledge else ()

    @property
    def experts(self) -> Experts | None:
        """How often each expert is chosen, by all pictures and by those of each class; None for methods without any."""
        return experts(self._knowledge) if self._knowledge else None

    @property
    def calibrated(self) -> bool:
        """Whether enough pictures were held back to fit probabilities to them."""
        if self._body is None or self._knowledge is None:
            return False
        return self._body.settings.calibrates(self._knowledge.calibration.pictures)

    def diff(self, earlier: ContinualClassifier) -> Difference:
        """Say what changed since an earlier state of this classifier, or between any two: classes, accuracies, confusions."""
        return difference(earlier._known(), self._known())

    def __str__(self) -> str:
        if not self.classes:
            return "a classifier that knows nothing yet"
        words = describe_calibration(self._known().calibration, self.calibrated)
        return f"{len(self.classes)} classes, {sum(self.counts.values())} pictures, {len(self.history)} updates; {words}"

    # -- files -----------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write everything learned to one file, atomically; what was there before is kept as `<name>.before`."""
        adapter.write(Path(path), self._document(), to_tensors(self._known()))
        self._file = resolved(Path(path))

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        backbone_file: str | Path | None = None,
        device: str | None = None,
        progress: Progress = SILENT,
        sharing: ContinualClassifier | None = None,
    ) -> ContinualClassifier:
        """The classifier in a file, on the very backbone it was taught with; `backbone_file` holds its weights, if the cache does not.

        Weights that another classifier, `sharing`, has in memory are not loaded again.
        """
        document, tensors = adapter.read(Path(path))
        config = document.config.model_copy(update={"device": device or "auto"})  # where it was taught says nothing about here
        document = document.model_copy(update={"config": config})
        made = cls(
            document.backbone.name,
            method=config.method["name"],
            image_size=config.backbone.image_size,
            seed=config.seed,
            false_alarm=document.false_alarm,
            backbone_file=backbone_file,
            progress=progress,
        )
        made._body = embody_stored(document, str(path), backbone_file, progress, sharing._body if sharing is not None else None)
        known = from_document(made._body, document, tensors, str(path))
        # in a file of an older program other features judged
        made._knowledge = known if document.calibration.left_out else teaching.rejudged(made._body, known)
        check_it_sees(made._body, made._knowledge, str(path))
        made.overrides = differences(config)  # only now: what a file from elsewhere says is checked
        made._file, made._numbers = resolved(Path(path)), document.numbers
        return made

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _ready(self) -> Body:
        """The frozen part, loaded now if it was not."""
        if self._body is None:
            self._body, self._notes = embody(
                self.backbone, self.method, self.image_size, self.seed, self.overrides, self.backbone_file, self.progress
            )
        return self._body

    def _known(self) -> Knowledge:
        if self._knowledge is None:
            self._knowledge = self._ready().untaught()
        return self._knowledge

    def _document(self) -> Document:
        return to_document(self._ready(), self._known(), self.false_alarm, self._numbers)

    def _begin_anew(self) -> None:
        self._knowledge = self._before = self._file = None
        self._numbers = False

    def _forget_body(self) -> None:
        self._body = self._knowledge = self._before = None

    def _with(self, knowledge: Knowledge) -> ContinualClassifier:
        """This classifier with other knowledge, to be asked."""
        other = copy.copy(self)
        other._knowledge = knowledge
        return other

    def _change(self, knowledge: Knowledge) -> None:
        self._before, self._knowledge = self._knowledge, knowledge

    def _stored_before(self, number: int | None = None) -> Knowledge | None:
        """The file this came from, where it was taught more since; else one kept beside it. Each must tell a part of the same story."""
        if self._file is None or self._knowledge is None:
            return None
        mine = self._knowledge.history
        for file in filter(Path.is_file, (self._file, *adapter.earlier(self._file))):
            document, tensors = adapter.read(file)
            earlier = tuple(document.history)
            if number is not None and len(earlier) != number:
                continue
            if len(earlier) < len(mine) and earlier == mine[: len(earlier)]:
                return from_document(self._ready(), document, tensors, str(file))
        return None

    def _asked(self, pictures: Any, far: bool) -> Any:
        one = is_one_picture(pictures)
        answers = []
        for name, answer in self.stream([pictures] if one else pictures, far):
            if isinstance(answer, Skipped):
                raise DataError(f"{name}: {answer.reason}", "Leave it out, or use `stream`, which goes on.")
            answers.append(answer)
        return answers[0] if one else answers

    def _temperature(self) -> float:
        return self._known().calibration.temperature if self.calibrated else 1.0

    def _word(self, answer: Answer, none_of_these: str | None) -> str | int:
        return none_of_these if none_of_these is not None and answer.unknown else self._value(answer.label)
