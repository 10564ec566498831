"""For whoever has folders of photos: learn, predict, save, load."""

from smope.classifier.adapter import AdapterError
from smope.classifier.classifier import Answer, ContinualClassifier
from smope.classifier.updates import Estimate, Loss, UpdateReport

__all__ = ["AdapterError", "Answer", "ContinualClassifier", "Estimate", "Loss", "UpdateReport"]
