"""Tables and plots, all drawn from records and from nothing else."""

from smope.report.compare import compare, find_records
from smope.report.curves import curves
from smope.report.records import Record, load_records
from smope.report.tables import TaskRow, task_table

__all__ = ["Record", "TaskRow", "compare", "curves", "find_records", "load_records", "task_table"]
