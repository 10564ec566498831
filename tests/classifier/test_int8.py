"""Products in whole numbers: how far they are from the product, whatever else is in the batch."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from smope.classifier.graph import ExportError
from smope.classifier.int8 import quantised

WIDTH, COLUMNS = 24, 10
CHANCE = np.random.default_rng(0)
WEIGHT = (CHANCE.normal(size=(WIDTH, COLUMNS)) * np.logspace(-2, 2, COLUMNS)).astype(np.float32)
ROWS = CHANCE.normal(size=(6, WIDTH)).astype(np.float32)


def graph(*nodes: tuple[str, list[str], list[str]], weights: dict[str, np.ndarray]) -> Any:
    made = [onnx.helper.make_node(kind, given, out) for kind, given, out in nodes]
    shapes = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", None]) for name in ("x", nodes[-1][2][0])]
    fixed = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    body = onnx.helper.make_graph(made, "products", shapes[:1], shapes[1:], fixed)
    return onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)


def answers(model: Any, rows: np.ndarray) -> np.ndarray:
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": rows})[0])


def product(weight: np.ndarray = WEIGHT) -> Any:
    return quantised(graph(("MatMul", ["x", "w"], ["y"]), weights={"w": weight}))


def test_an_answer_is_as_near_as_the_two_roundings_allow() -> None:
    found, exact = answers(product(), ROWS), ROWS.astype(np.float64) @ WEIGHT
    step_of_row, step_of_column = np.abs(ROWS).max(1, keepdims=True) / 127, np.abs(WEIGHT).max(0) / 63
    bound = (np.abs(ROWS).sum(1, keepdims=True) * step_of_column + step_of_row * np.abs(WEIGHT).sum(0)) / 2
    assert (np.abs(found - exact) <= 1.05 * bound).all()  # and a little: each rounds what the other has rounded
    assert (found != exact).any()


def test_rows_have_their_own_range_so_that_neighbours_do_not_matter() -> None:
    loud = np.concatenate([ROWS, 1e4 * ROWS[:1]])
    assert (answers(product(), loud)[:6] == answers(product(), ROWS)).all()
    assert (answers(product(), ROWS[2:3]) == answers(product(), ROWS)[2:3]).all()


@pytest.mark.parametrize("rows", [np.zeros((2, WIDTH), np.float32), np.full((1, WIDTH), 1e-30, np.float32)])
def test_a_row_without_a_range_is_nothing(rows: np.ndarray) -> None:
    assert (answers(product(), rows) == 0).all()


def test_a_column_of_zeros_stays_zero() -> None:
    weight = WEIGHT.copy()
    weight[:, 3] = 0
    found = answers(product(weight), ROWS)
    assert (found[:, 3] == 0).all() and np.isfinite(found).all()


def test_weights_have_seven_bits_and_what_is_exact_stays() -> None:
    weights = {"w": WEIGHT, "head": np.eye(COLUMNS, dtype=np.float32), "bias": np.zeros(COLUMNS, np.float32)}
    model = quantised(graph(("MatMul", ["x", "w"], ["h"]), ("Gemm", ["h", "head", "bias"], ["y"]), weights=weights))
    kept = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    whole = [value for value in kept.values() if value.dtype == np.int8]
    assert len(whole) == 1 and np.abs(whole[0]).max() == 63
    assert "w" not in kept and kept["head"].dtype == np.float32


def test_two_products_of_the_same_rows_share_their_rounding() -> None:
    nodes = (("MatMul", ["x", "w"], ["a"]), ("MatMul", ["x", "v"], ["b"]), ("Add", ["a", "b"], ["y"]))
    model = quantised(graph(*nodes, weights={"w": WEIGHT, "v": -WEIGHT}))
    assert [node.op_type for node in model.graph.node].count("QuantizeLinear") == 1
    assert (answers(model, ROWS) == 0).all()


def test_a_weight_of_two_products_is_rounded_once_and_no_name_is_given_twice() -> None:
    """A method that looks at a picture twice, first for its query, multiplies by the same weights twice."""
    other = WEIGHT[:, ::-1].copy()
    nodes = (
        ("Neg", ["x"], ["n"]),
        ("MatMul", ["x", "w"], ["a"]),
        ("MatMul", ["n", "w"], ["b"]),
        ("MatMul", ["x", "v"], ["c"]),
        ("Sum", ["a", "b", "c"], ["y"]),
    )
    model = quantised(graph(*nodes, weights={"w": WEIGHT, "v": other}))
    whole = [tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    assert len(whole) == 2
    np.testing.assert_allclose(answers(model, ROWS), answers(product(other), ROWS), rtol=1e-5, atol=1e-3)


def test_a_graph_without_such_a_product_is_refused() -> None:
    with pytest.raises(ExportError, match="No product"):
        quantised(graph(("Gemm", ["x", "w"], ["y"]), weights={"w": WEIGHT}))
