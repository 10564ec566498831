"""Calls by path: what is counted, and that the four paths go where they say."""

import importlib.util
import threading

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
import count_calls

MODULE = """
def once():
    return [each(number) for number in range(3)]

def each(number):
    return number

def two():
    yield 1
    yield 2
"""


@pytest.fixture(scope="module")
def counts():
    return count_calls.counts()


def calls(path, name):
    """How often a path calls the functions of this name."""
    return sum(count for function, count in path["of"].items() if function.endswith(f" {name}"))


def test_calls_are_counted_by_function_in_one_folder_on_every_thread(tmp_path):
    (tmp_path / "backbones").mkdir()
    parts = []
    for file in ("one.py", "backbones/other.py"):
        (tmp_path / file).write_text(MODULE)
        spec = importlib.util.spec_from_file_location("part", tmp_path / file)
        parts.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(parts[-1])

    def path():
        parts[0].once()
        threads = [threading.Thread(target=parts[1].each, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        list(parts[1].two())

    with count_calls.Ear(tmp_path) as ear:
        found = ear.count(path)
    of = found["of"]
    assert of["one.py:2 once"] == 1 and of["one.py:5 each"] == 3
    assert of["backbones/other.py:5 each"] == 2 and of["backbones/other.py:8 two"] == 3  # begun, gone on, ended
    assert found["files"] == 2 and found["functions"] == len(of) and found["calls"] == sum(of.values())
    assert found["calls"] - found["around"] == 5


def test_nothing_is_heard_after_the_end(tmp_path):
    with count_calls.Ear(tmp_path):
        pass
    assert threading.getprofile() is None


def test_each_path_goes_where_it_says(counts):
    training, answer, learned, served = (
        counts[name]
        for name in ("a training picture", "an answer of the classifier", "a photograph into learning", "an answer of the server")
    )
    assert calls(training, "embed") >= 1 and calls(training, "logits") == 1 and calls(training, "decode_stream") == 0
    assert calls(answer, "classify") == 1 and calls(answer, "decode_stream") == 1
    assert calls(learned, "learn") >= 1 and calls(learned, "decode_stream") == 0 and calls(learned, "_ask") == 1
    assert calls(served, "_check") == 1 and calls(served, "classify") >= 1 and calls(served, "_ask") == 1
    for path in counts.values():
        assert 0 < path["around"] < path["calls"] and 0 < path["files"] < path["functions"] < path["calls"]


ANSWER = ("open_picture", "evaluate", "normalise", "batch", "see", "logits", "answers", "_best")
TRAINING = ("loader", "train", "normalise", "batch", "logits")


@pytest.mark.parametrize(
    ("path", "steps"), [("an answer of the classifier", ANSWER), ("an answer of the server", ANSWER), ("a training picture", TRAINING)]
)
def test_each_step_is_taken_once(counts, path, steps):
    assert {step: calls(counts[path], step) for step in steps} == dict.fromkeys(steps, 1)


def test_the_table_gives_a_share_for_another_checkout(counts):
    twice = {name: {**path, "calls": 2 * path["calls"]} for name, path in counts.items()}
    lines = count_calls.table(counts, twice).splitlines()
    assert len(lines) == 5 and all(" 50 %" in line and " 100 %" in line for line in lines[1:])
    assert "%" not in count_calls.table(counts, None)
