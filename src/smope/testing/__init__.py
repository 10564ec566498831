"""What a method or a head promises, as checks that run on any of them, ours or yours; and the test doubles they use."""

from smope.testing.contract import checks, run_all
from smope.testing.subject import ContractError, DoesNotApply, Lesson, Subject, Teach, small_fields, teach

__all__ = ["ContractError", "DoesNotApply", "Lesson", "Subject", "Teach", "checks", "run_all", "small_fields", "teach"]
