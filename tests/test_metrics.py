"""Metrics of hand-made matrices, computed by hand."""

import pytest

from smope.metrics import cumulative_average_accuracy, final_average_accuracy, forgetting, sample_accuracy, task_averages

THREE_TASKS = [[90.0], [70.0, 80.0], [75.0, 60.0, 50.0]]


def test_each_task_counts_the_same_in_a_task_average():
    assert task_averages(THREE_TASKS) == pytest.approx([90.0, 75.0, 185 / 3])


def test_faa_is_the_last_average_and_caa_the_mean_of_all_of_them():
    assert final_average_accuracy(THREE_TASKS) == pytest.approx(61.6667, abs=1e-4)
    assert cumulative_average_accuracy(THREE_TASKS) == pytest.approx((90 + 75 + 61.6667) / 3, abs=1e-4)


def test_forgetting_measures_from_the_best_earlier_accuracy_and_leaves_out_the_last_task():
    # task 0: max(90, 70) - 75 = 15; task 1: 80 - 60 = 20
    assert forgetting(THREE_TASKS) == pytest.approx(17.5)
    # the best may come later than the task itself: task 0: max(50, 90) - 60 = 30; task 1: 40 - 40 = 0
    assert forgetting([[50.0], [90.0, 40.0], [60.0, 40.0, 10.0]]) == pytest.approx(15.0)


def test_the_final_row_is_no_earlier_one_so_learning_backwards_is_negative_forgetting():
    assert forgetting([[50.0], [80.0, 90.0]]) == pytest.approx(-30.0)


def test_a_single_task_forgets_nothing():
    assert forgetting([[42.0]]) == 0.0
    assert final_average_accuracy([[42.0]]) == cumulative_average_accuracy([[42.0]]) == 42.0


def test_sample_accuracy_weighs_images_where_the_average_weighs_tasks():
    # task 0 (row 0): one image, right; task 1 (row 1): four images, one right
    predictions = [("a", 0, 0), ("b", 1, 1), ("c", 1, 0), ("d", 1, 0), ("e", 1, 0)]
    assert sample_accuracy(predictions) == 40.0  # not a half, which would be as much wrong as right
    assert final_average_accuracy([[100.0], [100.0, 25.0]]) == 62.5
    assert sample_accuracy([]) == 0.0
