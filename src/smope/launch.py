"""Whether a launcher (torchrun, accelerate, mpirun) started this process as one of several that train together: its environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

#: what the launchers call a process's number, its number on its machine, and how many there are
_NAMES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),  # torchrun, and accelerate on GPUs
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),  # mpirun, and accelerate on CPUs through it
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
)


@dataclass(frozen=True)
class Place:
    """This process among those that train together."""

    rank: int = 0
    local_rank: int = 0
    processes: int = 1

    @property
    def is_main(self) -> bool:
        """Whether it is the one that speaks and writes."""
        return self.rank == 0


def place(environ: Mapping[str, str] = os.environ) -> Place:
    """Where a launcher has put this process; alone where there was none.

    >>> place({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    Place(rank=1, local_rank=1, processes=2)
    >>> place({"WORLD_SIZE": "2"})
    Place(rank=0, local_rank=0, processes=1)
    """
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        for rank, local, size in _NAMES:
            if rank in environ and environ.get(size, "").isdigit():
                return Place(int(environ[rank]), int(environ.get(local, 0)), int(environ[size]))
    return Place()


def came_alone(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `accelerate launch` was asked for several processes and started one, as it does on CPUs without mpirun."""
    return "ACCELERATE_MIXED_PRECISION" in environ and "MASTER_ADDR" in environ and place(environ).processes == 1
