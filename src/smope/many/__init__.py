"""Many runs: a list of tasks, and ways to carry them out: one after another, in processes of this machine, on Ray, as a Slurm array.

Each run has its own folder, from which it resumes; its record is the same whichever way it was made.
"""

from smope.many.pool import Processes
from smope.many.sequence import OneAfterAnother
from smope.many.tasks import Executor, Failures, Outcome, RunTask, Status, Watcher, records_of

__all__ = ["Executor", "Failures", "OneAfterAnother", "Outcome", "Processes", "RunTask", "Status", "Watcher", "records_of"]
