"""SMoPE's equations written longhand: Python loops over images, heads, tokens and experts.

The whole prompted ViT is written out a second time here (`Longhand`), in float64 and without a tensor product over the batch.
"""

import math

import numpy as np
import torch

from smope.backbones import VitShape
from smope.config import TapConfig, TrainConfig
from smope.methods import set_up
from smope.methods.smope import ExpertPrompter, Smope
from smope.phases import Batch, Chance, Collected, Update

from .longhand import best, softmax

SHAPE = VitShape(dim=8, depth=3, heads=2, patch=4, grid=2, mlp_hidden=6, registers=1)
B, N, H, D, P, K, C = 4, 6, 2, 4, 5, 2, 8  # N counts CLS, one register, four patches
BLOCKS = [0, 2]  # the last block too, where only the CLS row is computed
L = len(BLOCKS)
PAPER = Smope.presets["paper"]["method"]
TOLERANCE = {"rtol": 0, "atol": 1e-11}
FIRST, SECOND = Update(0, (0, 1), 0, Chance(0, ("task", 0))), Update(1, (2, 3, 4), 2, Chance(0, ("task", 1)))


def random(*shape, seed):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(update=SECOND, *, tap=None, train=None, cls=Smope, **fields):
    """A method at the start of `update`, its keys and values drawn wide enough that heads, images and experts disagree."""
    fields = {**PAPER, "experts": P, "top_k": K, "blocks": BLOCKS, **fields}
    method = cls(set_up(cls, SHAPE, Chance(0), fields, train=train or TrainConfig(), tap=tap or TapConfig(kind="off"))).double()
    with torch.no_grad():
        method.keys_LHPD.copy_(random(*method.keys_LHPD.shape, seed=1))
        method.values_LHPD.copy_(random(*method.values_LHPD.shape, seed=2))
    method.begin(FIRST)
    if update is SECOND:
        count_some(method)
        method.begin(SECOND)
        with torch.no_grad():  # the second task has moved the keys a little since then
            method.keys_LHPD.add_(random(*method.keys_LHPD.shape, seed=3), alpha=0.3)
    return method.double()


def some_choices():
    """The choices of nine imaginary images of the first task: experts 0 and 1 are the usual ones, expert 4 is never taken."""
    chosen_NLHP = torch.zeros(9, L, H, P, dtype=torch.bool)
    for n in range(9):
        for slot in range(L):
            for h in range(H):
                pair = [(0, 1), (0, 2 + h), (slot, 3)][n % 3] if n < 7 else (1, 3)
                chosen_NLHP[n, slot, h, list(pair)] = True
    return chosen_NLHP


def count_some(method):
    """Count them as what was observed of a task."""
    method.count({"chosen": some_choices().sum(0)}, torch.zeros(9))


def collect(phase, vit, *batches):
    """Run a pass over these batches, as the engine does."""
    collected = Collected(phase)
    for given in batches:
        collected.add(phase.step(given, vit), given.rows_B)
    collected.finish()


def batch(update=SECOND, count=B, seed=5, step=0):
    rows = torch.tensor([update.rows[i % len(update.rows)] for i in range(count)])
    return Batch(rows, Chance(0, ("step", step)), images_B3HW=random(count, 3, 8, 8, seed=seed))


class Longhand:
    """A pass through the ViT with prompt experts. `choose(slot, b, h, scores)` lists the experts an image switches on."""

    def __init__(self, vit, method, images, choose):
        self.vit, self.method, self.choose = vit, method, choose
        self.scores, self.chosen = {}, {}
        x = vit.embed(images).numpy()
        for index in range(SHAPE.depth):
            x = np.stack([self.block(index, b, x[b]) for b in range(len(x))])
        self.feature = np.stack([self.norm(vit.norm, image[0]) for image in x])

    def norm(self, owner, x):
        return (x - x.mean()) / math.sqrt(x.var() + SHAPE.norm_eps) * owner.weight.numpy() + owner.bias.numpy()

    def block(self, index, b, x):
        block = self.vit.blocks[index]
        qkv = [block.attn.qkv.weight.numpy() @ self.norm(block.norm1, row) + block.attn.qkv.bias.numpy() for row in x]
        mixed = np.zeros((N, C))
        for h in range(H):
            q, k, v = ([row[part * C + h * D : part * C + (h + 1) * D] for row in qkv] for part in range(3))
            prompt_scores, prompt_values = self.prompt(index, b, h, q) if index in BLOCKS else ([], [])
            for i in range(N):
                weights = softmax(prompt_scores + [float(q[i] @ k[m]) / math.sqrt(D) for m in range(N)])
                mixed[i, h * D : (h + 1) * D] = sum(w * u for w, u in zip(weights, prompt_values + v, strict=True))
        out = []
        for i in range(N):
            y = x[i] + block.attn.proj.weight.numpy() @ mixed[i] + block.attn.proj.bias.numpy()
            inner = block.mlp.fc1.weight.numpy() @ self.norm(block.norm2, y) + block.mlp.fc1.bias.numpy()
            active = np.array([0.5 * u * (1 + math.erf(u / math.sqrt(2))) for u in inner])
            out.append(y + block.mlp.fc2.weight.numpy() @ active + block.mlp.fc2.bias.numpy())
        return np.stack(out)

    def prompt(self, index, b, h, q):
        slot = BLOCKS.index(index)
        mean = sum(q) / N
        scores = [float(mean @ self.vector("key", index, h, j)) / math.sqrt(D) for j in range(P)]
        chosen = self.choose(slot, b, h, scores)
        self.scores[slot, b, h], self.chosen[slot, b, h] = scores, chosen
        return [scores[j] for j in chosen], [self.vector("value", index, h, j) for j in chosen]

    def vector(self, which, index, h, j):
        stored = (self.method.keys_LHPD if which == "key" else self.method.values_LHPD).detach().numpy()[BLOCKS.index(index)]
        if self.method.config.prefix_site == "post":
            return stored[h, j]
        first = (C if which == "key" else 2 * C) + h * D
        qkv = self.vit.blocks[index].attn.qkv
        return qkv.weight.numpy()[first : first + D] @ stored[0, j] + qkv.bias.numpy()[first : first + D]

    def logits(self):
        return self.feature @ self.method.head.weight.detach().numpy().T + self.method.head.bias.detach().numpy()

    def mask(self):
        images = {b for _, b, _ in self.chosen}
        return [[[[j in self.chosen[s, b, h] for j in range(P)] for h in range(H)] for b in sorted(images)] for s in range(L)]


def clean(slot, b, h, scores):
    return best(scores, K)


def everyone(slot, b, h, scores):
    return list(range(P))


def adaptive(method, eps):
    important = method.important_LHP.tolist()

    def choose(slot, b, h, scores):
        size = eps * (max(scores) - min(scores))
        return best([s - size * important[slot][h][j] for j, s in enumerate(scores)], K)

    return choose


def fixed(method, eps):
    important = method.important_LHP.tolist()
    return lambda slot, b, h, scores: best([s - eps * important[slot][h][j] for j, s in enumerate(scores)], K)


def cross_entropy(logits, rows, among):
    losses = []
    for b, row in enumerate(rows.tolist()):
        losses.append(math.log(sum(math.exp(logits[b][c]) for c in among)) - logits[b][row])
    return sum(losses) / len(losses)


def router(longhand):
    images = {b for _, b, _ in longhand.chosen}
    total = 0.0
    for place, scores in longhand.scores.items():
        total -= sum(softmax(scores)[j] for j in longhand.chosen[place])
    return total / len(images)


def prototype(keys, old_keys, mine):
    """`mine[slot][h]` says which old keys are prototypes."""
    total = 0.0
    for slot in range(L):
        for h in range(len(keys[slot])):
            for p in range(P):
                if not mine[slot][h][p]:
                    continue
                logits = [float(np.dot(old_keys[slot][h][p], keys[slot][h][j])) for j in range(P)]
                total -= sum(softmax(logits)[j] for j in best(logits, K))
    return total


def training_pass(method, update, given, vit):
    prompter = ExpertPrompter(method, method._in_training(update, given))
    return vit(given.images, prompter), prompter
