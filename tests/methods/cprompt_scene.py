"""CPrompt on the contract's stream: two lengths of prompts, and its pass walked by hand."""

import torch

from smope.backbones import PLAIN
from smope.methods.cprompt import CPrompt
from smope.phases import Batch, Chance
from smope.testing.contract import Subject

SMALL = {"length": 4, "second_length": 3, "second_block": 2}  # two lengths, so that one cannot stand for the other
SUBJECTS = {name: Subject(CPrompt, {**SMALL, "feature": name, "temperature": 1.7}) for name in ("raw", "normed")}
TERMS = {"auxiliary", "ce", "keys", "consistency"}
EXACT = {"rtol": 0, "atol": 1e-12}


def batch_of(subject, method, images, rows, seed=0):
    return Batch(rows, Chance(seed, ("step",)), images_B3HW=images, query_BD=method.query(images, subject.vit))


def ready(feature="raw", tasks=2, lesson=None, fields=None):
    """A method about to learn one more task, all its parameters moved a little so that no two tasks have the same prompts."""
    subject = Subject(CPrompt, {**SUBJECTS[feature].fields, **fields}) if fields else SUBJECTS[feature]
    method, lesson = subject.after(tasks), lesson or subject.stream()[tasks]
    method.begin(lesson.update)
    with torch.no_grad():
        for index, parameter in enumerate(method.parameters()):
            parameter += 0.1 * torch.randn(parameter.shape, generator=Chance(index).generator(), dtype=torch.float64)
    return subject, method, lesson.update, batch_of(subject, method, lesson.images_N3HW, lesson.rows_N)


def walk(vit, image, first, second, block, normed):
    """One image's feature with tokens put in by hand."""
    x = vit.embed(image.unsqueeze(0))
    for index, layer in enumerate(vit.blocks):
        tokens = list(x[0].unbind(0))
        if index == 0:
            tokens = tokens[:1] + list(first) + tokens[1:]
        if index == block:
            tokens = tokens[: 1 + len(first)] + list(second) + tokens[1 + len(first) :]
        x = layer(torch.stack(tokens).unsqueeze(0), PLAIN, cls_only=False)
    return (vit.final_norm(x) if normed else x)[0, 0]


def features(subject, method, batch, tasks):
    normed = method.config.feature == "normed"
    return [
        walk(subject.vit, image, method.first_TPD[task], method.second_TPD[task], 2, normed)
        for image, task in zip(batch.images, tasks, strict=True)
    ]


def gradients(method, term):
    method.zero_grad(set_to_none=True)
    term.backward()
    moved = {name: parameter.grad for name, parameter in method.named_parameters() if parameter.grad is not None and parameter.grad.any()}
    return {name: set(gradient.reshape(len(gradient), -1).any(1).nonzero().flatten().tolist()) for name, gradient in moved.items()}
