"""What the documentation computes while it is built: drawings, formulas and laws say what is."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

import docs_results
import docs_scale
import docs_speed
import docs_studies
import measure_classifier
from smope.backbones import VitShape
from smope.backbones.registry import backbone_info
from smope.classifier import ContinualClassifier, adapter
from smope.config import TapConfig, TrainConfig
from smope.engine.cost import cost
from smope.feature_sums import SPARE
from smope.files import read_json
from smope.heads import HEADS, Setup
from smope.heads.sums import SumsConfig
from smope.methods.smope import Smope
from smope.phases import Chance
from smope.reproduce import STUDIES, Store, find_study, plan
from smope.reproduce.figures import figure
from smope.testing.contract import Subject
from smope.testing.subject import SHORT_TAP

ROOT = Path(__file__).resolve().parents[1]


def test_a_formula_needs_no_script():
    docs_hook = pytest.importorskip("docs_hook", reason="the extra 'docs' is not installed")
    made = docs_hook.formula("w_i = 1 / (1 + exp(m − l_{i<t}))    a weight of token i\n")
    assert "<i>w</i><sub><i>i</i></sub> = 1 / (1 + exp(<i>m</i> − <i>l</i><sub><i>i</i>&lt;<i>t</i></sub>))" in made
    assert made.count('class="why"') == 1 and "a weight of token <i>i</i>" in made


def test_examples_in_docstrings_become_code():
    docs_griffe = pytest.importorskip("docs_griffe", reason="the extra 'docs' is not installed")
    text = "It adds.\n\n>>> 1 + 1\n2\n>>> 2 + 2\n4\n\nThat is all."
    assert docs_griffe.fenced(text) == "It adds.\n\n```pycon\n>>> 1 + 1\n2\n>>> 2 + 2\n4\n```\n\nThat is all."


@pytest.mark.parametrize("drawn", sorted((ROOT / "docs" / "images").glob("*-emoji-r*.json")), ids=lambda path: path.stem)
def test_the_drawings_are_of_the_records_that_are_there(drawn, tmp_path):
    """A drawing is what `smope reproduce NAME --dataset SET --seeds 0 --out docs/images` writes."""
    name, _, dataset = drawn.stem.partition("-emoji-r")
    study, store = find_study(name), Store((ROOT / "results",))
    planned = plan(study.cells(f"emoji-r{dataset}"), [0], store, beside=study.beside)
    figure(study, planned, store, tmp_path / "again")
    assert read_json(tmp_path / "again.json") == read_json(drawn) and drawn.with_suffix(".svg").is_file()


def test_what_a_class_adds_is_what_the_law_says():
    """The scale page's law against the state of a real method, byte by byte."""
    fields = {"blocks": [0, 1], "experts": 4, "top_k": 2}
    subject = Subject(Smope, fields, tap={**SHORT_TAP, "kind": "diagonal"})
    few, many = subject.after(1).float(), subject.after(3).float()
    few.head.statistics.double(), many.head.statistics.double()
    payload = [sum(tensor.numel() * tensor.element_size() for tensor in method.state_dict().values()) for method in (few, many)]
    assert payload[1] - payload[0] == docs_scale.state_bytes(4, few.shape.dim)
    assert len(save({name: tensor.contiguous() for name, tensor in many.state_dict().items()})) > payload[1]
    rest = payload[0] - docs_scale.state_bytes(3, few.shape.dim)
    config = docs_scale.classifier_config().model_copy(update={"method": {"blocks": [0, 1], "experts": 4}})
    factor = 8 * few.shape.dim * (few.shape.dim + 1)  # which this kind of TAP does not keep
    counters = 16  # images seen, images in the factor
    assert rest == docs_scale.fixed_bytes(config, few.shape.dim, few.shape.heads) - factor + counters


def test_what_a_class_adds_to_an_adapter_is_what_the_law_says(tmp_path):
    """The scale page's law against a file's tensors, byte by byte: what is remembered for "none of these" and for the page included."""
    overrides = (
        "method.experts=4",
        "method.top_k=2",
        "method.blocks=[0,1]",
        "train.epochs=1",
        "tap.kind=diagonal",
        "tap.steps=2",
        "threads=1",
    )
    classifier = ContinualClassifier("vit-tiny-test", method="smope", image_size=16, overrides=overrides)
    chance, sizes = np.random.default_rng(0), []
    for classes in ("ab", "cde"):
        pictures = [(chance.integers(0, 256, (16, 16, 3), np.uint8), name) for name in classes for _ in range(6)]
        classifier.learn(pictures)
        classifier.save(tmp_path / "a.smope")
        _, tensors = adapter.read(tmp_path / "a.smope")
        sizes.append(sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))
    config = docs_scale.classifier_config().model_copy(update={"method": {"blocks": [0, 1], "experts": 4}})
    shape = backbone_info("vit-tiny-test").shape
    assert sizes[1] - sizes[0] == docs_scale.adapter_bytes(3, config, shape.dim, shape.heads)


def test_what_a_closed_form_head_keeps_is_what_the_law_says():
    """With as many pictures as the sketch can hold and the sample asks for."""
    config = SumsConfig(blocks=[-1], tokens=["cls"], rank=16, sample=12)
    kind = HEADS.find("ridge-lda")
    settings = kind.Config.model_validate(config.model_dump())
    shape = VitShape(dim=24, depth=1, heads=1, patch=4, grid=2, mlp_hidden=4)
    head = kind(Setup(None, TrainConfig(), TapConfig(kind="off"), kind, settings, "never", shape, Chance(0)))
    head.grow(4, torch.Generator())
    features, rows = torch.randn(60, 24, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 4
    for part in torch.arange(60).split(1):
        one = head.sums.empty()
        one.add(features[part], rows[part], part)
        head.sums.merge(one)
    kept = {
        name: tensor for name, tensor in head.state_dict().items() if tensor.ndim and not name.startswith(("strengths", "temperatures"))
    }
    whole = sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
    unused = int(SPARE * 16) - len(head.sums.length_R)
    assert whole == docs_scale.sums_bytes(4, config, 24) - unused * (2 * 24 + 8)


def test_laws_that_can_be_counted_by_hand():
    assert docs_scale.evaluations(3, 10) == 10 + 20 + 30
    assert docs_scale.estimate_bytes(600, 384, 200) == 4 * 600 * (200 * 384 + 2 * 4096) + 16 * 600**2
    assert docs_scale._first(lambda classes: classes > 1234) == 1200
    rates = docs_scale.rates(ROOT / "results")
    assert 0 < rates.look < rates.learn < 1 and 1e9 < rates.arithmetic < 1e13


def test_the_speed_page_says_how_to_measure_and_shows_what_was(tmp_path):
    assert "smope bench" in docs_speed.page(tmp_path / "none")
    ratios = [{"what": "smope", "against": "plain", "value": value, "bar": 0.97} for value in (0.95, 0.99)]
    section = {"section": "prediction", "unit": "seconds", "medians": {"smope": 0.5, "plain": 0.52}, "ratios": ratios}
    machine = {"processor": "a processor", "cores": 2}
    measured = {"backbone": "b", "image_size": 224, "batch_size": 8, "rounds": 5, "threads": 2, "machine": machine}
    (tmp_path / "a.json").write_text(json.dumps({**measured, "versions": {"torch": "2"}, "sections": [section]}))
    page = docs_speed.page(tmp_path)
    assert "0.950 | 0.97 | kept" in page and "0.990 | 0.97 | **not kept**" in page


def test_what_was_measured_of_the_classifier_stands_beside_what_was_promised():
    measured = json.loads((ROOT / "results/classifier.json").read_text())
    assert {"updates", "pace"} <= set(measured) <= set(measure_classifier.PARTS)
    page = measure_classifier.page(measured)
    assert page.count("| kept |") >= 3 and page.count("commit `") == len(measured)
    slower = {"updates": {**measured["updates"], "seconds": [61.0], "accuracy": 50.0, "researchers_accuracy": 54.0}}
    assert measure_classifier.page(slower).count("**not kept**") == 2
    where = {name: measured["pace"][name] for name in ("command", "machine", "versions", "backbone", "image_size")}
    runs = [[{"new": [90.0, 80.0], "alike": 3}, {"new": [None, 70.0], "old": [80.0, 79.0], "alike": 0}]]
    page = measure_classifier.page({"honest-groceries": {"runs": runs, **where}})
    assert "| +10.0 points | within 4 | **not kept** |" in page and "| +1.0 points | within 4 | kept |" in page
    ground = {"area": 0.8, "false_alarms": 7.0, "caught": 30.0, "known_classes": 5, "known_pictures": 10, "unknown_pictures": 9}
    page = measure_classifier.page({"unknown": {"asked": 5.0, "grounds": {"CIFAR-10": ground}, **where}})
    assert "| 0.80 |" in page and "| 7.0 % | 5 ± 1.5 % | **not kept** |" in page
    assert measure_classifier.area_under_curve(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 2.0])) == 0.625


def test_the_countings_are_those_of_the_cost_command():
    text = docs_results.countings()
    smope = cost("smope", classes=200, tasks=10, backbone="vit_base_patch16_224")
    assert f"| smope | {smope['trainable_parameters'] / 1e6:.2f} |" in text


def test_a_study_shows_each_rows_step_beside_the_papers_and_what_is_not_yet_run(tmp_path):
    cells = {cell.row: cell for cell in STUDIES["ablation"].cells("emoji-r-100")}
    names = {"one-prompt": "linear", "+ score aggregation": "smope"}
    records = {row: json.loads((ROOT / "results/emoji-r" / name / "seed0/record.json").read_text()) for row, name in names.items()}
    for row, record in records.items():
        place = tmp_path / names[row] / "record.json"
        place.parent.mkdir()
        place.write_text(json.dumps({**record, "config": cells[row].config(0).model_dump(mode="json")}))
    lines = docs_studies.studies(tmp_path).splitlines()
    first, second = (record["faa"] for record in records.values())
    assert next(line for line in lines if line.startswith("| one-prompt")).split(" | ")[1:4:2] == [f"{first:.2f}", "–"]
    assert next(line for line in lines if line.startswith("| + score aggr")).split(" | ")[3::3] == [f"{second - first:+.2f} *", "+0.26 |"]
    assert next(line for line in lines if line.startswith("| + TAP")).split(" | ")[1:4:2] == ["not yet run", "–"]
    assert any(line.startswith("2 records of 8 settings: `smope reproduce ablation --dataset emoji-r-100 --seeds 0`") for line in lines)
    assert sum(line.startswith("### ") for line in lines) == 7


def test_the_cells_of_a_grid_are_means_over_the_same_seeds(tmp_path):
    record = json.loads((ROOT / "results/emoji-r/smope/seed0/record.json").read_text())
    first, second, *_ = STUDIES["epsilon"].cells("emoji-r-100")
    for number, (cell, seed, faa) in enumerate(((first, 0, 80.0), (second, 0, 70.0), (second, 1, 10.0))):
        place = tmp_path / str(number) / "record.json"
        place.parent.mkdir()
        place.write_text(json.dumps({**record, "faa": faa, "seed": seed, "config": cell.config(seed).model_dump(mode="json")}))
    assert "| eps | 80.00 | 70.00 | not yet run | not yet run | not yet run |" in docs_studies.studies(tmp_path)
