"""For whoever has folders of photos: learn, predict, save, load."""

from smope.classifier.adapter import AdapterError
from smope.classifier.checking import CheckReport
from smope.classifier.classifier import Answer, ContinualClassifier
from smope.classifier.comparing import Difference
from smope.classifier.conditions import UpdateRefused
from smope.classifier.forgetting import Receipt
from smope.classifier.scoring import Score
from smope.classifier.updates import Estimate, Loss, UpdateReport

__all__ = [
    "AdapterError",
    "Answer",
    "CheckReport",
    "ContinualClassifier",
    "Difference",
    "Estimate",
    "Loss",
    "Receipt",
    "Score",
    "UpdateRefused",
    "UpdateReport",
]
