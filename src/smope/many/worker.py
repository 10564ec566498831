"""A worker process of this machine, a child of `smope.many.pool`. It is sent tasks, and tells how far they are and how they ended.

At the end of its input it saves the run at hand and goes. That is how it is asked to stop, and what it sees when its parent dies.
"""

from __future__ import annotations

from smope.child_process import Parent
from smope.many.tasks import RunTask
from smope.many.work import do


def main() -> None:
    """Work until there is no more."""
    parent = Parent()
    while (message := parent.read()) is not None:
        task = RunTask.from_json(message)
        answer = do(task, lambda status: parent.tell({"status": status.as_json()}), parent.interrupts)
        if "record" in answer:
            answer["record"] = None  # it is in the folder, and may be long
        parent.tell(answer)
