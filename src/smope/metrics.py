"""Numbers of a run, as pure functions of its accuracy matrix and its predictions. All in percent.

`accuracy[t][i]` is the accuracy on the test images of task i after task t, over all classes seen by then, i <= t.
"""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def task_averages(accuracy: Matrix) -> list[float]:
    """A_t: the plain mean over the tasks seen after each task.

    >>> task_averages([[80.0], [60.0, 90.0]])
    [80.0, 75.0]
    """
    return [sum(row) / len(row) for row in accuracy]


def final_average_accuracy(accuracy: Matrix) -> float:
    """FAA: A_T, the mean over tasks after the last one."""
    return task_averages(accuracy)[-1]


def cumulative_average_accuracy(accuracy: Matrix) -> float:
    """CAA: the mean of A_t over the whole stream."""
    averages = task_averages(accuracy)
    return sum(averages) / len(averages)


def forgetting(accuracy: Matrix) -> float:
    """Mean over all tasks but the last of the best earlier accuracy minus the final one; 0 for a single task.

    >>> forgetting([[80.0], [60.0, 90.0]])
    20.0
    """
    last = len(accuracy) - 1
    losses = [max(accuracy[t][i] for t in range(i, last)) - accuracy[last][i] for i in range(last)]
    return sum(losses) / len(losses) if losses else 0.0


def sample_accuracy(predictions: Sequence[tuple[str, int, int]]) -> float:
    """The share of test images answered right, every image counting the same.

    >>> sample_accuracy([("a.png", 0, 0), ("b.png", 1, 0)])
    50.0
    """
    right = sum(true == predicted for _, true, predicted in predictions)
    return 100.0 * right / len(predictions) if predictions else 0.0
