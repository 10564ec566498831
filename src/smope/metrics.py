"""Numbers of a run, as pure functions of its accuracy matrix, of its predictions, and of how often its experts were chosen.

`accuracy[t][i]` is the accuracy on the test images of task i after task t, over all classes seen by then, i <= t. Accuracies are in
percent, shares between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]
Usage = Sequence[Sequence[Sequence[float]]]  #: pictures that chose each expert, by block, head and expert


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


def collapsed_share(usage: Usage, pictures: float) -> float:
    """Share of heads in which every picture of a task chose the same experts.

    `usage` says how many of the pictures chose each expert, by block, head and expert. A picture chooses equally many experts of each
    head, so all pictures chose the same ones exactly where each expert was chosen by all of them or by none.

    >>> collapsed_share([[[3, 3, 0], [3, 2, 1]]], pictures=3)
    0.5
    """
    heads = [head for block in usage for head in block]
    return sum(all(count in (0, pictures) for count in head) for head in heads) / len(heads)


def unused_share(usage: Usage) -> float:
    """Share of experts that no picture chose.

    >>> unused_share([[[3, 3, 0], [3, 2, 1]]]) == 1 / 6
    True
    """
    counts = [count for block in usage for head in block for count in head]
    return sum(count == 0 for count in counts) / len(counts)
