"""One of several processes: makes the runs of the list that it is given, together with the others. `test_processes.py` starts it."""

import json
import sys
from pathlib import Path

from smope.engine.run import run
from smope.methods import resolve

if __name__ == "__main__":
    for name, values in json.loads(Path(sys.argv[1]).read_text()).items():
        run(resolve(values), Path(sys.argv[2]) / name)
