"""The ONNX file: it answers as the classifier does, says all that is needed to use it, and is never left behind if it does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

from smope.classifier import ContinualClassifier, export, graph, onnx_check
from smope.classifier.graph import ExportError, Graph, on_cpu, trace
from smope.classifier.int8 import quantised
from smope.classifier.looking import question, see
from smope.errors import DataError
from smope.methods import Method, find, known_methods
from smope.testing.subject import small_fields

from .conftest import COLOURS, Make, draw, pairs

#: what looks at its own state before it prompts at all: without a task that can be found, its passes have fewer tokens
BRANCHING = ("cprompt",)


@pytest.fixture(scope="module")
def written(taught_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, export.ExportReport]:
    """Three colours as ONNX, checked with pictures, one class of which is not known."""
    path = tmp_path_factory.mktemp("onnx") / "shop.onnx"
    return path, calibrated(taught_file).export(path, check=pairs(*COLOURS, count=3, first=500))


@pytest.fixture
def taught(taught_file: Path) -> ContinualClassifier:
    return calibrated(taught_file)


def calibrated(file: Path) -> ContinualClassifier:
    """With a temperature and a threshold: a graph that forgot them would not be noticed without."""
    classifier = ContinualClassifier.load(file)
    body = classifier._ready()
    classifier._body = replace(body, settings=body.settings.model_copy(update={"calibrate_from": 5}))
    classifier.set_params(false_alarm=0.2)
    assert classifier._temperature() != 1 and classifier.threshold is not None
    return classifier


def about(path: Path) -> dict[str, Any]:
    (entry,) = onnx.load(path).metadata_props
    assert entry.key == "smope"
    found: dict[str, Any] = json.loads(entry.value)
    return found


def run(path: Path, pictures: Sequence[Image.Image]) -> list[Any]:
    views = np.stack([np.asarray(picture.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1) for picture in pictures])
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(["logits", "probabilities", "distance"], {"pixels": views}))


def run_on(session: Any, views: torch.Tensor) -> Any:
    return session.run(["logits"], {"pixels": views.numpy()})[0]


def parts(classifier: ContinualClassifier) -> tuple[Any, Any, Graph]:
    body, known = on_cpu(classifier._ready(), classifier._known())
    return body, known, Graph(body, known, classifier._temperature())


# -- the file --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7])
def test_it_answers_as_the_classifier_in_batches_of_any_size(written: Any, taught: ContinualClassifier, count: int) -> None:
    asked = [draw(colour, 900 + number) for number in range(count) for colour in COLOURS][:count]
    logits, probabilities, distance = run(written[0], asked)
    assert logits.shape == (count, 3) and distance.shape == (count,)
    np.testing.assert_allclose(probabilities, taught.predict_proba(asked), atol=1e-5)
    assert [answer.unknown for answer in taught.classify(asked)] == list(distance > taught.threshold)


def test_distances_are_those_of_none_of_these(written: Any, taught: ContinualClassifier) -> None:
    asked = [draw("white", 3), draw("red", 4)]
    body, known, _ = parts(taught)
    views = torch.stack([torch.from_numpy(body.transform.evaluate(np.asarray(picture))) for picture in asked])
    wanted = see(body, known, question(body, known, views)).distance_B
    np.testing.assert_allclose(run(written[0], asked)[2], wanted, rtol=1e-4)


def test_without_spread_the_distance_is_no_number(make: Make) -> None:
    """One picture a class: nothing can be said to be far, and a comparison with NaN says so."""
    classifier = make()
    classifier.learn([(draw("red", 1), "red"), (draw("blue", 2), "blue")])
    body, known, made = parts(classifier)
    with torch.no_grad():
        logits, _, distance = made(onnx_check.random_views(16)[1])
    assert logits.shape == (2, 2) and distance.isnan().all()
    wrong = Graph(body, known, 1.0)
    wrong.has_places, wrong.mean_CD, wrong.scale_CD = True, known.places.statistics.mean_CD.float(), torch.ones(2, 48)
    eager = SimpleNamespace(run=lambda names, feed: [value.detach().numpy() for value in wrong(torch.from_numpy(feed["pixels"]))])
    with pytest.raises(ExportError, match="distances"):
        onnx_check.agree(eager, made, body, known, onnx_check.random_views(16))


def test_each_weight_is_in_the_file_once_though_both_passes_use_it(written: Any, taught: ContinualClassifier) -> None:
    weights = 4 * sum(parameter.numel() for parameter in taught._ready().vit.parameters())
    assert written[0].stat().st_size < 1.15 * weights
    assert "Transpose" not in {node.op_type for node in onnx.load(written[0]).graph.node if node.input[0].startswith("vit.")}


def test_without_distance_it_takes_one_pass_and_says_so(written: Any, taught: ContinualClassifier, tmp_path: Path) -> None:
    taught.export(tmp_path / "one.onnx", distance=False)
    asked = [draw("white", 3), draw("red", 4)]
    _, probabilities, distance = run(tmp_path / "one.onnx", asked)
    np.testing.assert_allclose(probabilities, taught.predict_proba(asked), atol=1e-5)
    assert np.isnan(distance).all() and about(tmp_path / "one.onnx")["threshold"] is None
    products = [sum(node.op_type == "MatMul" for node in onnx.load(path).graph.node) for path in (tmp_path / "one.onnx", written[0])]
    assert 2 * products[0] == products[1]


def test_metadata_hold_all_that_is_needed_and_no_path_of_this_machine(written: Any, taught: ContinualClassifier) -> None:
    path, told = written[0], about(written[0])
    assert told["classes"] == taught.classes == ["red", "blue", "green"]
    assert told["backbone"] == {"name": "vit-tiny-test", "fingerprint": taught._ready().fingerprint} and told["method"] == "smope"
    look = told["preprocessing"]
    assert (look["size"], look["resize"], look["mean"], look["std"]) == (16, "squash", [0.5] * 3, [0.5] * 3)
    assert (
        told["temperature"] == taught._temperature()
        and told["threshold"] == taught.threshold
        and told["false_alarm"] == 0.2
        and told["calibrated"]
    )
    assert told["version"] and told["int8"] is False and told["input"]["shape"] == ["batch", 3, 16, 16]
    content = path.read_bytes()
    assert b"site-packages" not in content and str(Path.cwd()).encode() not in content and str(Path.home()).encode() not in content


def test_the_report_says_what_was_checked(written: Any) -> None:
    path, report = written
    assert report.noise.pictures == 1 + 2 + 5 and report.real.pictures == 12 and 0 < report.noise.difference < 1e-4
    assert report.judged.pictures == 9 and 0 <= report.judged.accuracy <= 100 and report.faster is None
    assert report.bytes == path.stat().st_size
    assert "8 random images and 12 pictures" in str(report) and "% of 9 pictures" in str(report)
    assert [place.name for place in path.parent.iterdir()] == ["shop.onnx"]


def test_the_example_of_the_documentation_needs_no_torch_and_agrees(written: Any, taught: ContinualClassifier, tmp_path: Path) -> None:
    code = textwrap.dedent(re.search(r"\n    import json.*?sep=\"\\t\"\)\n", str(export.__doc__), re.S)[0])  # type: ignore[index]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    blocked = "import sys\nsys.modules['torch'] = sys.modules['smope'] = None\n"
    (tmp_path / "example.py").write_text(blocked + code)
    (tmp_path / "shop.onnx").write_bytes(written[0].read_bytes())
    turned = Image.Exif()
    turned[0x0112] = 6
    draw("blue", 3, size=24).save(tmp_path / "small.png")
    draw("red", 7).resize((200, 90)).save(tmp_path / "large.jpg")  # reduced by 2 before it is resized
    draw("green", 8).resize((64, 48)).save(tmp_path / "turned.jpg", exif=turned)
    names = ["small.png", "large.jpg", "turned.jpg"]
    done = subprocess.run([sys.executable, "example.py", *names], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [line.split("\t") for line in done.stdout.splitlines()]
    answers = taught.classify([tmp_path / name for name in names])
    assert [(name, label) for name, label, _ in told] == [
        (name, "none of these" if answer.unknown else answer.label) for name, answer in zip(names, answers, strict=True)
    ]
    assert [float(share) for *_, share in told] == pytest.approx([answer.probability for answer in answers], abs=6e-4)


# -- refusals --------------------------------------------------------------------------------------------------------------


def test_a_graph_that_answers_otherwise_is_not_left_behind(
    taught: ContinualClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.onnx").write_bytes(b"the old one")

    def write(made: Graph, metadata: dict[str, Any], path: Path) -> None:
        path.write_bytes(b"graph")

    monkeypatch.setattr(export, "write_graph", write)
    monkeypatch.setattr(export, "open_session", lambda path, threads: Fake(*parts(taught), shift=1e-3))
    with pytest.raises(ExportError, match=r"logits differ by 0\.001"):
        taught.export(tmp_path / "shop.onnx")
    assert (tmp_path / "shop.onnx").read_bytes() == b"the old one" and len(list(tmp_path.iterdir())) == 1


class Fake:
    """A session that answers as the classifier does, or nearly."""

    def __init__(self, body: Any, known: Any, made: Graph, shift: float = 0.0, spoil: str = "") -> None:
        self.body, self.known, self.made, self.shift, self.spoil = body, known, made, shift, spoil

    def run(self, names: Sequence[str], feed: dict[str, Any]) -> list[Any]:
        seen = see(self.body, self.known, question(self.body, self.known, torch.from_numpy(feed["pixels"])))
        logits = seen.logits_BC[:, self.made.live_C].clone()
        logits[0, 0] += self.shift
        values = {"logits": logits, "probabilities": (logits / self.made.temperature).softmax(1), "distance": seen.distance_B.float()}  # type: ignore[union-attr]
        if self.spoil:
            values[self.spoil] = values[self.spoil] * 1.01 + 0.01
        return [values[name].numpy() for name in names]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"shift": 2e-4}, "logits differ by 0.0002"),
        ({"shift": float("nan")}, "logits differ|probabilities"),
        ({"spoil": "probabilities"}, "probabilities or distances"),
        ({"spoil": "distance"}, "probabilities or distances"),
    ],
)
def test_each_output_is_compared(taught: ContinualClassifier, change: dict[str, Any], problem: str) -> None:
    body, known, made = parts(taught)
    noise = onnx_check.random_views(16)
    assert onnx_check.agree(Fake(body, known, made, shift=5e-5), made, body, known, noise).difference == pytest.approx(5e-5, rel=0.1)
    with pytest.raises(ExportError, match=problem):
        onnx_check.agree(Fake(body, known, made, **change), made, body, known, noise)


def test_a_picture_that_float32_does_not_settle_is_counted_apart_but_many_are_not_chance(
    taught: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float64 is made to say otherwise than float32, as it does where two experts score the same."""
    body, known, made = parts(taught)
    fake = Fake(body, known, made, shift=1e-2)  # the first picture of every batch
    honest = Method.logits
    monkeypatch.setattr(
        Method, "logits", lambda *arguments: honest(*arguments) + (1e-2 if arguments[1].images.dtype == torch.float64 else 0)
    )
    found = onnx_check.agree(fake, made, body, known, onnx_check.random_views(16)[2:])
    assert (found.pictures, found.on_edge) == (5, 1) and found.difference == 0
    with pytest.raises(ExportError, match="3 of 8 pictures lie on an edge"):
        onnx_check.agree(fake, made, body, known, onnx_check.random_views(16))


def test_a_method_that_cannot_be_traced_is_refused_with_the_reason_and_without_noise(
    taught: ContinualClassifier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = Method.logits

    def branching(*arguments: Any) -> torch.Tensor:
        logits = honest(*arguments)
        return logits * 2 if float(logits.sum()) > 0 else logits

    monkeypatch.setattr(Method, "logits", branching)
    with pytest.raises(ExportError, match=r"Method 'smope' cannot be written as ONNX: .*a graph has one way") as caught:
        taught.export(tmp_path / "shop.onnx")
    assert len(caught.value.problem) < 300 and "another method" in caught.value.remedy
    assert capsys.readouterr() == ("", "") and not list(tmp_path.iterdir())


def test_what_is_missing_is_named_before_anything_is_computed(
    taught: ContinualClassifier, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="no class yet"):
        make().export(tmp_path / "shop.onnx")
    find_spec = graph.importlib.util.find_spec
    monkeypatch.setattr(graph.importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find_spec(name))
    with pytest.raises(ExportError, match=r"needs onnxscript.*pip install '"):
        taught.export(tmp_path / "shop.onnx")


# -- int8 ------------------------------------------------------------------------------------------------------------------


def test_int8_makes_the_large_products_whole_numbers_and_nothing_else(written: Any, tmp_path: Path) -> None:
    small = tmp_path / "small.onnx"
    graph.save_model(quantised(onnx.load(written[0])), {**about(written[0]), "int8": True}, small)
    kinds = [node.op_type for node in onnx.load(small).graph.node]
    assert kinds.count("MatMulInteger") == 2 * (4 * 4 + 1) and "ConvInteger" not in kinds  # 4 blocks, the last in two parts; the head stays
    assert about(small)["int8"] is True and small.stat().st_size < 0.6 * written[0].stat().st_size
    asked = [draw(colour, 70 + number) for number in range(4) for colour in ("red", "blue", "green")]
    floats, int8 = run(written[0], asked)[0], run(small, asked)[0]
    assert 0 < np.abs(floats - int8).max() < 0.05 * np.abs(floats).max()
    sessions = [graph.open_session(path, 1) for path in (written[0], small)]
    noise = onnx_check.random_views(16)
    alike = [(run_on(sessions[0], views).argmax(1) == run_on(sessions[1], views).argmax(1)) for views in noise]
    assert onnx_check.same_answers(*sessions, noise) == pytest.approx(100 * np.concatenate(alike).mean())
    assert onnx_check.same_answers(sessions[0], sessions[0], noise) == 100
    assert onnx_check.speed(*sessions, 16) > 0


# -- every method ----------------------------------------------------------------------------------------------------------


def taught_with(make: Make, method: str) -> ContinualClassifier:
    fields = [f"method.{name}={value}" for name, value in small_fields(find(method)).items()]
    classifier = make(method=method, overrides=[*fields, "train.epochs=1", "tap.steps=5", "threads=1"])
    classifier.learn(pairs("red", "blue", count=5))
    classifier.learn(pairs("green", "white", count=5))
    classifier.remove("blue")
    return classifier


@pytest.mark.parametrize("method", [name for name in known_methods() if name not in BRANCHING])
def test_every_method_can_be_traced_with_an_open_batch(make: Make, method: str) -> None:
    body, known, made = parts(taught_with(make, method))
    program = trace(made).module()
    for views in onnx_check.random_views(16):
        seen = see(body, known, question(body, known, views))
        logits, _, distance = program(views)
        torch.testing.assert_close(logits, seen.logits_BC[:, [0, 2, 3]], rtol=0, atol=1e-5)
        torch.testing.assert_close(distance.double(), seen.distance_B, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", BRANCHING)
def test_a_method_that_branches_is_refused(make: Make, method: str) -> None:
    with pytest.raises(ExportError, match=f"Method '{method}' cannot be written as ONNX: its prediction goes one way or another"):
        trace(parts(taught_with(make, method))[2])


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in known_methods() if name not in BRANCHING])
def test_every_method_can_be_exported(make: Make, method: str, tmp_path: Path) -> None:
    report = taught_with(make, method).export(tmp_path / "shop.onnx", check=pairs("red", "green", "white", count=2, first=90))
    assert about(tmp_path / "shop.onnx")["classes"] == ["red", "green", "white"] and report.real.pictures == 6


def test_equal_scores_go_to_the_lower_index_in_onnx_too() -> None:
    """Where experts tie, torch's rule is ours (a stable sort); the graph rests on ONNX's promise for TopK."""
    scores = np.zeros((2, 25), dtype=np.float32)
    scores[1, 20:] = 1
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("TopK", ["x", "k"], ["v", "i"])],
            "ties",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 25])],
            [onnx.helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [2, 5])],
            [onnx.numpy_helper.from_array(np.array([5]), "k")],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
        ir_version=9,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": scores})[0].tolist() == [[0, 1, 2, 3, 4], [20, 21, 22, 23, 24]]


def test_the_tracer_took_the_selection_that_is_tested(taught: ContinualClassifier) -> None:
    """The plain formula and TopK, not a sort or an attention that only torch knows."""
    _, _, made = parts(taught)
    named = {str(node.target) for node in trace(made).graph.nodes}
    assert any("topk" in name for name in named) and not any("sort" in name for name in named)
    assert not any("flash" in name for name in named)
