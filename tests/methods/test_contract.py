"""Every registered method keeps every promise of the contract; a new one is found here by being registered."""

import functools
import inspect
import itertools
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
import torch
from PIL import Image

from smope.backbones.registry import load_backbone
from smope.config import Adapt, TapConfig
from smope.data import Dataset, ImageRef, ImageSet, Loader, TaskStream, Transform
from smope.engine.checkpoint import RunState
from smope.engine.loop import Loop
from smope.engine.runtime import SingleProcess
from smope.heads import HEADS
from smope.labels import LabelSpace
from smope.methods import Method, build, known_methods, resolve
from smope.methods.adapter import PartMethod
from smope.phases import Chance, Update
from smope.prompts import top_k
from smope.testing import contract, streams
from smope.testing.contract import ContractError, DoesNotApply, Subject, checks, run_all, teach
from smope.testing.subject import SHORT_TAP, TRAIN, Lesson, small_fields

UNBALANCED = {"kind": "diagonal", "ratio": 1.0, "epochs": 6, "lr": 0.03, "schedule": {"kind": "constant"}}
KINDS = get_args(TapConfig.model_fields["kind"].annotation)
TAPS: dict[str, dict[str, Any]] = {
    "off": {"kind": "off"},
    "pooled": {**SHORT_TAP, "kind": "pooled"},
    "diagonal": UNBALANCED,  # as the released program draws: all at the epoch's start, shuffled, and not after the first task
    "centroids": {**SHORT_TAP, "kind": "centroids", "centroids": 2, "first_task": True},  # of four pictures a class: clusters of several
}
TAPS |= {kind: {**SHORT_TAP, "kind": kind, "first_task": True} for kind in KINDS if kind not in TAPS}
# What a kind of TAP can break; the other promises are checked with TAP off and with one kind of it.
TAP_PROMISES = ("saved", "resumed", "same_seed", "merged", "retired", "alone", "one_", "unequal", "learns", "declared")
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "smope": {
        "pre": {"prefix_site": "pre"},
        "uniform": {"noise": "uniform"},
        "fixed": {"noise": "fixed"},
        "none": {"noise": "none"},
        "all-experts": {"top_k": -1, "noise": "none", "router_weight": 0.0},
        "no-aggregation": {"aggregate": False, "top_k": -1, "noise": "none", "router_weight": 0.0, "prototype_weight": 0.0},
        "heavy-losses": {"router_weight": 0.1, "prototype_weight": 0.1, "prototypes": "all"},
    },
    "one-prompt": {"pre": {"prefix_site": "pre"}},
    "deep-l2p": {"shared-keys": {"key_scope": "shared"}, "pre-each": {"prefix_site": "pre", "length": 3, "length_counts": "each"}},
    "dualprompt": {
        "shared-keys-pre-each": {"key_scope": "shared", "prefix_site": "pre", "length_counts": "each"},
        "pool": {"pool": 2, "test_keys": "all"},
    },
    "coda-prompt": {"orthogonal-pre": {"mu": 0.1, "prefix_site": "pre"}},
    "vq-prompt": {"pre": {"prefix_site": "pre"}},
    "ovor": {
        "plain-features": {"augmented": False},
        "no-outliers": {"regularised_share": 0.0},
        "few-outliers-pre": {"prefix_site": "pre", "boundary": 3, "draws": 5, "neighbour": 2, "outliers_per_class": 2},
    },
    "hide-prompt": {"no-contrast": {"contrast_weight": 0.0, "ensemble": 0.5}},
    "norga": {"tanh": {"activation": "tanh"}},
    "convprompt": {
        "names": {"count_rule": "names", "train_keys": True},
        "list": {"count_rule": "list", "counts": [2, 1]},
        "constant": {"count_rule": "constant", "most": 2, "carry": False, "pull": 1.0},
    },
    "cprompt": {"normed-decay": {"feature": "normed", "decay": 5e-4}},
    "joint": {"frozen": {"mode": "frozen"}},
}
# Methods that are tried with every head, in every mode of adaptation.
MATRIX = ("linear", "smope")
NOT_ADDITIVE = tuple(name for name, head in HEADS.all().items() if not head.additive)
# Who need not keep which promise; any other check that finds nothing to check is a check that was lost.
UNPROMISED = {
    "memory_is_flat": ("dualprompt", "coda-prompt", "hide-prompt", "norga", "convprompt", "cprompt"),
    "other_seed_other_result": ("ncm", "never", "first", "add"),
    "any_split_in_any_order_gives_the_same_head": (*NOT_ADDITIVE, "always"),
    "two_models_add_up": (*NOT_ADDITIVE, "always"),
}
# Every weight of a ViT at the rate of a head would be noise.
TRAINS = {"joint": TRAIN.model_copy(update={"prompt_lr_multiplier": 0.01})}


def small(method: type[Method], fields: dict[str, Any]) -> dict[str, Any]:
    return small_fields(method) | fields


class Case(NamedTuple):
    method: type[Method]
    fields: dict[str, Any]
    tap: dict[str, Any]
    head: dict[str, Any] = {}
    adapt: Adapt = "always"


def cases() -> dict[str, Case]:
    found = {}
    for name, method in known_methods().items():
        for kind, tap in TAPS.items():
            if kind != "off" and issubclass(method, PartMethod):
                continue  # their rows are cosines, for which draws are not made: docs/rivals.md says so
            found[f"{name}-{kind}"] = Case(method, small(method, {}), tap)
        for preset, sections in method.presets.items():
            tap = dict(sections.get("tap", TAPS["off"]))
            if tap["kind"] != "off":
                tap |= {name: UNBALANCED[name] for name in ("epochs", "lr", "schedule")}
            found[f"{name}-preset-{preset}"] = Case(method, small(method, dict(sections.get("method", {}))), tap)
        for variant, fields in VARIANTS.get(name, {}).items():
            found[f"{name}-{variant}"] = Case(method, small(method, fields), TAPS["off"])
    for name in MATRIX:
        method = known_methods()[name]
        for head, adapt in itertools.product(HEADS.all(), get_args(Adapt)):
            if adapt != "never" and not (method.has_prompts or HEADS.find(head).trains):
                continue  # there is nothing that could learn
            # beside a trial, prompts on drawn pictures may be given up, and then there is nothing that follows anything
            alone = {"plain": "off"} if adapt == "always" and "plain" in HEADS.find(head).Config.model_fields else {}
            found[f"{name}-{head}-{adapt}"] = Case(method, small(method, {}), TAPS["off"], {"name": head} | alone, adapt)
    for name, method in known_methods().items():
        modes: tuple[Adapt, ...] = ("first", "always") if method.has_prompts else ("never",)
        for adapt in modes:
            head = {"name": "ridge-lda"} | ({"plain": "off"} if adapt == "always" else {})
            found[f"{name}-ridge-lda-{adapt}"] = Case(method, small(method, {}), TAPS["off"], head, adapt)
    smope = known_methods()["smope"]
    for adapt in ("first", "always"):
        found[f"smope-both-{adapt}"] = Case(smope, small(smope, {}), TAPS["off"], {"name": "ridge-lda", "plain": "add"}, adapt)
    found["ncm-euclidean"] = Case(known_methods()["ncm"], {}, TAPS["off"], {"distance": "euclidean"})
    return found


CASES = cases()


@functools.cache
def subject(case: str) -> Subject:
    method, fields, tap, head, adapt = CASES[case]
    return Subject(method, fields, train=TRAINS.get(method.name, TRAIN), tap=tap, head=head, adapt=adapt)


def applies(case: str, check: contract.Check) -> bool:
    rarer = any(case.endswith(f"-{kind}") for kind in TAPS if kind not in ("off", "pooled"))
    return not rarer or any(word in check.__name__ for word in TAP_PROMISES)


PAIRS = [  # a case's checks share what was taught, so they stay in one process
    pytest.param(case, check, id=f"{case}-{check.__name__[6:]}", marks=pytest.mark.xdist_group(case))
    for case in CASES
    for check in checks()
    if applies(case, check)
]


@pytest.mark.parametrize(("case", "check"), PAIRS)
def test_method_keeps_its_promise(case, check):
    try:
        check(subject(case))
    except DoesNotApply as reason:
        case_of = CASES[case]
        whose = {case_of.method.name, case_of.head.get("name", "trained"), case_of.adapt, case_of.head.get("plain", "trial")}
        if not whose & set(UNPROMISED.get(check.__name__[6:], ())):
            pytest.fail(f"nothing was checked: {reason}")
        pytest.skip(str(reason))


def test_every_check_says_its_promise_in_one_line():
    assert len(checks()) == len({check.__name__ for check in checks()}) > 20
    for check in checks():
        assert "\n" not in inspect.getdoc(check)


def test_variants_name_methods_that_exist():
    assert VARIANTS.keys() <= known_methods().keys()


def test_the_contract_runs_on_a_method_that_is_not_registered():
    class Theirs(Method):
        name = "theirs"

    outcome = run_all(Theirs)
    assert set(outcome.values()) == {"kept", "Its head is not a sum over pictures."} and len(outcome) == len(checks())
    assert "theirs" not in known_methods()


def test_an_error_names_the_method_and_what_was_seen():
    class Contrary(Method):
        name = "contrary"

        def logits(self, batch, vit):
            return -super().logits(batch, vit)

    with pytest.raises(ContractError, match=r"contrary: it recognises .*% of the pictures just learned; chance is 33%"):
        streams.check_it_learns(Subject(Contrary))


def test_of_equal_scores_the_lower_index_is_chosen():
    score = torch.tensor([[0.0, 2.0, 2.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    assert top_k(score, 2).int().tolist() == [[0, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    wide = torch.zeros(3, 1000)  # long rows take another sorting routine
    assert top_k(wide, 7).nonzero()[:, 1].tolist() == list(range(7)) * 3


# -- the reference runner against the engine -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder, dice = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    refs = {"train": [], "test": []}
    for label in "abcde":
        for which in range(6):
            path = folder / f"{label}{which}.png"
            Image.fromarray(dice.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
            refs["train" if which < 5 else "test"].append(ImageRef(path.name, label, path))
    return Dataset("noise", tuple("abcde"), ImageSet(refs["train"]), ImageSet(refs["test"]))


@pytest.mark.parametrize("tap", ["pooled", "diagonal"])
@pytest.mark.parametrize("name", known_methods())
def test_the_engine_teaches_as_the_reference_does(dataset, name, tap):
    method = known_methods()[name]
    config = resolve(
        {
            "method": {"name": name, **small(method, {})},
            "data": {"sizes": [2, 1, 2], "order": "natural", "augmentation": "none", "evaluation": "squash", "normalisation": "half"},
            "backbone": {"name": "vit-tiny-test", "image_size": 16},
            "train": {"epochs": 2, "batch_size": 4, "lr": 0.01, "schedule": {"kind": "constant"}, "clip_norm": 1.0},
            "tap": TAPS[tap],
            "seed": 3,
            "eval_batch_size": 4,
            "threads": 1,
        }
    )
    stream = TaskStream.build(dataset, sizes=[2, 1, 2], order="natural")
    transform = Transform(16, "none", "squash", "half")
    vit = load_backbone("vit-tiny-test", image_size=16)
    taught = build(config, vit.shape)
    Loop(config, stream, transform, vit, taught, SingleProcess("cpu", 1), RunState()).run()

    reference, labels = build(config, vit.shape), LabelSpace()
    for task in stream:
        known = len(labels)
        update = Update(task.index, tuple(labels.add(task.classes)), known, Chance(3, ("task", task.index)))
        loader = Loader(task.train, labels.rows(task.train.labels), transform, 99, seed=0, address=(), augment=False, shuffle=False)
        (everything,) = loader.epoch(0)
        teach(reference, vit, Lesson(update, everything.images_B3HW, everything.rows_B))
    assert contract.difference(taught.state_dict(), reference.state_dict()) == ""
