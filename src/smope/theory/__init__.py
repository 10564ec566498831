"""The paper's theorem as an experiment: how fast the least-squares estimate of prompt experts nears the truth.

`run_experiment(Settings(), folder)` fits mixtures with and without score aggregation, with as many atoms as the truth and with one
more, and gives the slope of log D over log n, which should be -1/2.
"""

from smope.theory.experiment import Fit, Result, Settings, read_result, run_experiment
from smope.theory.slopes import Slope

__all__ = ["Fit", "Result", "Settings", "Slope", "read_result", "run_experiment"]
