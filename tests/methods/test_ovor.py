"""OVOR: one prompt for all tasks, outliers against longhand loops, what the regularised epochs train, and what they leave behind."""

import itertools
import math
import os

import pytest
import torch
from safetensors.torch import load_file

from smope.backbones import VitShape
from smope.config import TrainConfig
from smope.engine.cost import cost
from smope.engine.loop import Interrupted
from smope.engine.run import run
from smope.errors import ConfigError
from smope.methods import resolve
from smope.methods.ovor import OUTLIER, Ovor, neighbour_distance
from smope.phases import Batch, Chance, Collect, Train, Update
from smope.reproduce.studies import paper_tables
from smope.testing.contract import Subject
from soak import scene

from .making import made

SMALL = {"g_blocks": [0], "e_blocks": [1, 2], "g_length": 2, "e_length": 4}
FEW = {"boundary": 3, "draws": 5, "neighbour": 2, "outliers_per_class": 2}


def make(dim=8, train=None, **fields):
    shape = VitShape(dim=dim, depth=5, heads=2, patch=4, grid=2, mlp_hidden=2 * dim)
    method = made(Ovor, shape, fields, train=train, chance=Chance(0, ("init",)))
    return method.double()


def draw(*size, seed=1):
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def kth_distance(point, others, k):
    return sorted(math.dist(point, other) for other in others)[k - 1]


def unit(row):
    return [x / math.hypot(*row) for x in row]


def longhand_outliers(features, noise, config, classes):
    """Steps 2 to 5 of the program, one number at a time."""
    units = [unit(row) for row in features]
    k = min(config.neighbour, len(units))
    edge = [kth_distance(row, units, k) for row in units]
    boundary = sorted(range(len(units)), key=lambda i: -edge[i])[: config.boundary]
    candidates = []
    for i in boundary:
        anchor = features[i] if config.anchor == "boundary" else [0.0] * len(features[i])
        candidates += [[a + config.sigma * e for a, e in zip(anchor, row, strict=True)] for row in noise]
    far = [kth_distance(unit(row) if config.candidates == "unit" else row, units, k) for row in candidates]
    best = sorted(range(len(candidates)), key=lambda i: -round(far[i], 10))[: config.outliers_per_class * classes]
    return torch.tensor([candidates[i] for i in best], dtype=torch.float64)


def asked(folder, *, tasks=2, share=0.5, **train):
    """A run of the engine on pictures drawn in `folder`: four classes of three."""
    for part in ("train", "test"):
        scene.draw_classes(folder / "pictures" / part, scene.COLOURS, 3)
    method = {"name": "ovor", **SMALL, **FEW, "regularised_share": share}
    changes = {"method": method, "data": {"tasks": tasks}, "train": {"epochs": 4, **train}, "tap": {"kind": "off"}}
    return resolve(scene.settings(folder / "pictures", **changes, eval_batch_size=4, checkpoint_minutes=5.0))


# -- the prompt ------------------------------------------------------------------------------------------------------------


def test_the_prompt_is_5_keys_and_5_values_in_two_blocks_and_20_and_20_in_three_the_same_for_all_images():
    method = make()
    prefixes = method.prefixes()
    assert {block: (tuple(key.shape), tuple(value.shape)) for block, (key, value) in prefixes.items()} == {
        0: ((5, 8), (5, 8)),
        1: ((5, 8), (5, 8)),
        2: ((20, 8), (20, 8)),
        3: ((20, 8), (20, 8)),
        4: ((20, 8), (20, 8)),
    }
    assert torch.equal(torch.cat(prefixes[1]), method.general_LPC[1]) and torch.equal(torch.cat(prefixes[3]), method.expert_LPC[1])
    assert method.expert_LPC.min() >= 0 and method.expert_LPC.max() < 1
    assert not method.needs_query and method.passes(training=True) == method.passes(training=False) == 1


@pytest.mark.parametrize("field", ["g_length", "e_length"])
def test_a_length_that_gives_unequal_keys_and_values_is_refused(field):
    with pytest.raises(ConfigError, match=rf"method\.{field}"):
        resolve({"method": {"name": "ovor", field: 5}})


@pytest.mark.parametrize("e_blocks", [[1, 2], [2, 9]])
def test_a_block_named_twice_or_not_there_is_refused(e_blocks):
    with pytest.raises(ConfigError, match=r"method\.e_blocks"):
        make(e_blocks=e_blocks)


# -- outliers --------------------------------------------------------------------------------------------------------------


def test_neighbour_distance_longhand_in_one_piece_and_in_many(monkeypatch):
    points, others = draw(7, 4), draw(9, 4, seed=2)
    expected = [kth_distance(point, others.tolist(), 3) for point in points.tolist()]
    for chunk in (1024, 2):
        monkeypatch.setattr("smope.methods.ovor._CHUNK", chunk)
        assert neighbour_distance(points, others, 3).tolist() == pytest.approx(expected, abs=1e-12)
    assert neighbour_distance(points, points, 1).max() < 1e-7  # a point is its own first neighbour


@pytest.mark.parametrize("anchor", ["boundary", "origin"])
@pytest.mark.parametrize("candidates", ["unit", "raw"])
@pytest.mark.parametrize("neighbour", [2, 50], ids=["second", "more-than-there-are"])
def test_outliers_longhand(anchor, candidates, neighbour):
    method = make(dim=6, **{**FEW, "neighbour": neighbour}, anchor=anchor, candidates=candidates, sigma=0.3)
    features = draw(8, 6, seed=3) * 2
    found = method.outliers(features, 2, torch.Generator().manual_seed(9))
    noise = torch.randn(5, 6, generator=torch.Generator().manual_seed(9)).tolist()  # float32, as the method draws
    assert torch.allclose(found, longhand_outliers(features.tolist(), noise, method.config, 2), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("classes", "distinct"), [(20, 16), (10, 8)])
def test_the_released_origin_leaves_16_distinct_outliers_for_20_classes_and_8_for_10(classes, distinct):
    released = make(dim=768, **Ovor.presets["released"]["method"]).float()
    features = draw(classes * 12, 768, seed=4).float() * 1.5
    outliers = released.outliers(features, classes, torch.Generator().manual_seed(0))
    assert len(outliers) == 40 * classes and len(outliers.unique(dim=0)) == distinct
    assert outliers.norm(dim=1).mean().item() == pytest.approx(2.9, abs=0.1)
    around = make(dim=768, anchor="boundary").float().outliers(features, classes, torch.Generator().manual_seed(0))
    assert len(around.unique(dim=0)) == 40 * classes
    assert torch.cdist(around, features).amin(1).max() < 4  # each near a feature, of norm 41


def test_a_task_of_two_pictures_has_outliers_too():
    outliers = make(**FEW).outliers(draw(2, 8), 2, torch.Generator().manual_seed(0))
    assert outliers.shape == (4, 8) and outliers.isfinite().all()


# -- energies --------------------------------------------------------------------------------------------------------------


def test_energy_loss_longhand():
    def huber(x):
        return 0.5 * x * x if abs(x) <= 1 else abs(x) - 0.5

    inlier, outlier = [-20.0, -15.4, -14.5, -3.0], [-9.0, -3.25, -2.0]
    loss = make().energy_loss(torch.tensor(inlier), torch.tensor(outlier)).item()
    expected = sum(huber(max(0, e + 15)) for e in inlier) / 4 + sum(huber(max(0, -3 - e)) for e in outlier) / 3
    assert loss == pytest.approx(expected, rel=1e-6)


def test_regularised_loss_uses_the_current_rows_alone_and_moves_no_other_row():
    method = make()
    update = Update(1, (3, 4), 3, Chance(0))
    method.head.grow(5, torch.Generator().manual_seed(0))
    features, rows = draw(6, 8), torch.tensor([3, 4, 4, 3, OUTLIER, OUTLIER])
    losses = method.outlier_loss(update)(Batch(rows, Chance(0), features_BD=features), None)
    sum(losses.values()).backward()
    assert not method.head.weight.grad[:3].any() and not method.head.bias.grad[:3].any() and method.head.weight.grad[3:].all()
    weight, bias = method.head.weight.detach()[3:], method.head.bias.detach()[3:]
    logits = [
        [sum(x * w for x, w in zip(f, row, strict=True)) + b for row, b in zip(weight.tolist(), bias.tolist(), strict=True)]
        for f in features.tolist()
    ]
    energies = [-math.log(sum(math.exp(x) for x in row)) for row in logits]
    ce = sum(-energy - row[label] for energy, row, label in zip(energies, logits, [0, 1, 1, 0], strict=False)) / 4
    assert losses["ce"].item() == pytest.approx(ce, rel=1e-9)
    own = method.energy_loss(torch.tensor(energies[:4]), torch.tensor(energies[4:])).item()
    assert losses["outliers"].item() == pytest.approx(0.1 * own, rel=1e-5)


# -- one task --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "share", "plain", "regularised"),
    [(50, 0.2, 40, 10), (20, 0.2, 16, 4), (6, 0.2, 5, 1), (2, 0.2, 1, 1), (1, 0.2, 1, 0), (9, 0, 9, 0)],
)
def test_regularised_epochs_are_part_of_the_total(epochs, share, plain, regularised):
    method = make(train=TrainConfig(epochs=epochs), regularised_share=share)
    phases = method.phases(Update(0, (0, 1), 0, Chance(0)))
    trained = [(phase.name, phase.epochs) for phase in phases if isinstance(phase, Train)]
    assert trained == [("train", plain)] + ([("outliers", regularised)] if regularised else [])
    views = [phase for phase in phases if isinstance(phase, Collect) and phase.name.startswith("features")]
    assert len(views) == len({view.name for view in views}) == regularised and all(view.augmented for view in views)


def test_one_schedule_spans_plain_and_regularised_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    rates = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self, *args: rates.append(self.param_groups[0]["lr"]) or step(self, *args))
    schedule, optimizer = {"kind": "cosine-epoch", "off_by_one": True}, {"kind": "adam"}
    run(asked(tmp_path, tasks=1, share=0.2, epochs=50, batch_size=8, lr=1e-3, optimizer=optimizer, schedule=schedule))
    expected = [1e-3 * math.cos(0.495 * math.pi * max(epoch - 1, 0) / 49) for epoch in range(50) for _ in range(2)]
    assert rates == pytest.approx(expected, rel=1e-12)  # 12 pictures, two steps an epoch
    assert rates[80] == pytest.approx(3.3e-4, rel=0.05) and rates[-1] == pytest.approx(4.74e-5, rel=0.01)


def test_plain_features_are_taken_once():
    method = make(train=TrainConfig(epochs=20), augmented=False)
    views = [phase for phase in method.phases(Update(0, (0, 1), 0, Chance(0))) if phase.name.startswith("features")]
    assert len(views) == 1 and not views[0].augmented


def test_each_regularised_epoch_has_its_own_view_every_feature_once_and_a_share_of_the_outliers():
    method = make(train=TrainConfig(epochs=10, batch_size=4), **FEW)
    update = Update(0, (0, 1), 0, Chance(0))
    phases = method.phases(update)
    images = [draw(10, 8, seed=seed) for seed in (1, 2)]
    rows = torch.tensor([0, 1] * 5)
    for view, features in zip([phase for phase in phases if phase.name.startswith("features")], images, strict=True):
        view.finish({"feature": features}, rows)
    (phase,) = [phase for phase in phases if phase.name == "outliers"]
    assert phase.draws.steps == 3
    seen = []
    for epoch in (0, 1):
        drawer = phase.draws.epoch(epoch, update.chance.at("outliers", epoch))
        steps = [drawer(step) for step in range(3)]
        assert [len(r) for _, r in steps] == [5, 5, 3]  # 4, 4 and 2 features; 4 outliers over 3 steps, one each
        assert all((r == OUTLIER).sum() == 1 for _, r in steps)
        features, labels = (torch.cat(parts) for parts in zip(*steps, strict=True))
        inlier = labels != OUTLIER
        order = [(images[epoch] == feature).all(1).nonzero().item() for feature in features[inlier]]
        assert sorted(order) == list(range(10)) and order != list(range(10))
        assert torch.equal(labels[inlier], rows[order])
        seen.append(features[~inlier])
    assert not torch.equal(*seen)  # drawn anew each epoch


def test_with_more_batches_than_outliers_they_come_around_again():
    method = make(train=TrainConfig(epochs=5, batch_size=1), **{**FEW, "outliers_per_class": 1})
    update = Update(0, (0, 1), 0, Chance(0))
    view, phase = [phase for phase in method.phases(update) if phase.name in ("features 1", "outliers")]
    view.finish({"feature": draw(6, 8)}, torch.tensor([0, 1] * 3))
    drawer = phase.draws.epoch(0, update.chance.at("outliers", 0))
    outliers = [drawer(step)[0][1:] for step in range(phase.draws.steps)]
    assert len(outliers) == 6 and torch.equal(outliers[0], outliers[2]) and not torch.equal(outliers[0], outliers[1])


def test_the_regularised_epochs_move_the_head_alone_and_leave_no_features_behind():
    subject = Subject(Ovor, SMALL)
    lesson = subject.stream()[0]
    method = subject.fresh()
    pause = subject.teach(method, subject.vit, lesson, stop_after=0)
    kept, seen = [], set()
    while pause is not None:
        before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
        phase = method.phases(lesson.update)[pause.phase]
        pause = subject.teach(method, subject.vit, lesson, stop_after=1, state=pause)
        kept.append(len(method.rows_N))
        if phase.name == "outliers":
            moved = {name for name, tensor in method.state_dict().items() if not torch.equal(tensor, before[name])}
            seen |= moved
    assert seen == {"head.weight", "head.bias"}
    assert max(kept) == len(lesson.rows_N) == 12 and kept[-1] == 0 and not method.features_ND.numel()


def test_outliers_lower_what_the_head_says_of_them():
    def mean_energy(share):
        subject = Subject(Ovor, {**SMALL, "regularised_share": share, "outlier_weight": 1.0, "inlier_energy": 50.0})
        subject.train = TrainConfig(epochs=16, batch_size=5, lr=0.03, prompt_lr_multiplier=1.0, schedule={"kind": "constant"})
        lesson = subject.stream()[0]
        method = subject.learn(subject.fresh(), lesson)
        feature = subject.vit(lesson.images_N3HW, method.prompter(None, training=False))
        outliers = method.outliers(feature, 3, torch.Generator().manual_seed(5))
        return -method.head(outliers).logsumexp(1).mean().item()

    assert mean_energy(0.5) > mean_energy(0.0)


def test_stopped_between_taking_features_and_using_them_the_engine_goes_on_to_the_same_end(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # many checkpoints: that they are flushed is tested elsewhere
    config = asked(tmp_path)
    whole = run(config, tmp_path / "whole")
    held = []
    for patience in itertools.count(1):
        calls = itertools.count(1)
        try:
            parts = run(config, tmp_path / "parts", resume=True, stop=lambda calls=calls, patience=patience: next(calls) >= patience)
            break
        except Interrupted:
            held.append(len(load_file(tmp_path / "parts" / "checkpoint.safetensors")["method.rows_N"]))
    assert {0, 6, 12} <= set(held)  # stopped before, between and after the two passes that take features
    assert parts["digest"] == whole["digest"]


# -- cost -------------------------------------------------------------------------------------------------------------------


def test_parameters_on_imagenet_r():
    result = cost("ovor", classes=200, tasks=10, backbone="vit_base_patch16_224")
    assert result["trainable_parameters"] == (2 * 10 + 3 * 40) * 768 + 153_800 == 261_320
    assert result["parameters_by_paper"] is None  # the table counts as the code does
    params, train, test = paper_tables()["cost"]["rows"]["ovor"]
    assert round(result["trainable_parameters"] / 1e6, 2) == params
    assert (round(result["gflops"]["train"], 2), round(result["gflops"]["test"], 2)) == (train, test)
    printed = {"g_blocks": [0, 1, 2], "e_blocks": [3, 4]}  # the layout the table prints is not the one it counts
    other = cost("ovor", classes=200, tasks=10, backbone="vit_base_patch16_224", fields=printed)
    assert other["trainable_parameters"] == 238_280
