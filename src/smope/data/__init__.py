"""Pictures, how they become tensors, and streams of tasks made of them."""

from smope.data.decoding import decode_stream
from smope.data.folder import folder
from smope.data.images import ImageRef, ImageSet, InMemory, Picture, Skipped, check_readable, decode
from smope.data.loader import ImageBatch, Loader
from smope.data.registry import DatasetEntry, DatasetInfo, describe, load_dataset, prepare_dataset, register, training_pictures
from smope.data.stream import Dataset, Task, TaskStream, class_order
from smope.data.transforms import AUGMENTATIONS, NORMALISATIONS, RESIZES, Transform

__all__ = [
    "AUGMENTATIONS",
    "NORMALISATIONS",
    "RESIZES",
    "Dataset",
    "DatasetEntry",
    "DatasetInfo",
    "ImageBatch",
    "ImageRef",
    "ImageSet",
    "InMemory",
    "Loader",
    "Picture",
    "Skipped",
    "Task",
    "TaskStream",
    "Transform",
    "check_readable",
    "class_order",
    "decode",
    "decode_stream",
    "describe",
    "folder",
    "load_dataset",
    "prepare_dataset",
    "register",
    "training_pictures",
]
