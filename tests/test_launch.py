"""What launchers leave in the environment."""

import pytest

from smope.launch import Place, came_alone, place

MEET = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Place()),
        ({**MEET, "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, Place(3, 1, 4)),
        ({**MEET, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, Place(1, 0, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Place()),  # nowhere to meet
        ({**MEET, "WORLD_SIZE": "2"}, Place()),  # nobody in particular
    ],
)
def test_a_place_is_read_from_what_the_launchers_set(environ, expected):
    assert place(environ) == expected and place(environ).is_main == (expected.rank == 0)


def test_accelerate_that_started_one_process_only_is_noticed():
    assert came_alone({**MEET, "ACCELERATE_MIXED_PRECISION": "no"})
    assert not came_alone({**MEET, "ACCELERATE_MIXED_PRECISION": "no", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"})
    assert not came_alone({})
