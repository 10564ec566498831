"""Many runs as one Slurm array: a script with a line a run. Handed in again after a timeout, each goes on where it was."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ArrayTask:
    """One line of the array: the words after `smope run`, and the run's folder."""

    words: tuple[str, ...]
    folder: Path


def array_script(name: str, tasks: Sequence[ArrayTask], *, cpus: float, gpus: float = 0, jobs: int | None = None, then: str = "") -> str:
    """The script. `jobs` bounds how many run at once; `then` is what to do when all are done."""
    here = Path.cwd()
    at_once = f"%{jobs}" if jobs else ""
    gpu = [f"#SBATCH --gres=gpu:{-(-gpus // 1):.0f}"] if gpus else []
    cases = []
    for index, task in enumerate(tasks):
        line = shlex.join([sys.executable, "-m", "smope", "run", *task.words, "--out", str(task.folder), "--resume", "--quiet"])
        cases.append(f"  {index}) exec {line} ;;")
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name=smope-{name}",
            f"#SBATCH --array=0-{len(tasks) - 1}{at_once}",
            f"#SBATCH --cpus-per-task={-(-cpus // 1):.0f}",
            *gpu,
            "#SBATCH --output=smope-%A-%a.log",
            "#SBATCH --requeue",
            "#SBATCH --signal=B:INT@120",
            "# Written by `smope reproduce --emit slurm`: one task a run. Hand it in with sbatch; --time, --partition and --account may be",
            "# given there. A run that is cut off saves itself two minutes before; handed in again, it goes on where it was.",
            *([f"# When all are done: {then}"] if then else []),
            f"cd {shlex.quote(str(here))} || exit 1",
            "export OMP_WAIT_POLICY=PASSIVE",
            'case "$SLURM_ARRAY_TASK_ID" in',
            *cases,
            '  *) echo "there is no task $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;',
            "esac",
            "",
        ]
    )
