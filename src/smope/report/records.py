"""Records from disk, refused when they are not what this version writes: a table never mixes what it cannot compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from smope.engine.record import SCHEMA
from smope.errors import DataError
from smope.files import read_json

Record = Mapping[str, Any]

Number = Annotated[float, Field(ge=-1e9, le=1e9)]
Percent = Annotated[float, Field(ge=0, le=100)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Row = Annotated[int, Field(ge=-1, le=10**6)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]


class _Part(BaseModel):
    """What a record from elsewhere must be for a table or a page to be drawn from it; what else it holds is left alone."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Named(_Part):
    name: str
    split: str = "final"
    fingerprint: str | None = None
    image_size: Count | None = None


class _Machine(_Part):
    cores: Count | None = None
    processor: str | None = None
    system: str | None = None
    python: str | None = None


class _Values(_Part):
    numerics: Count
    method: str
    preset: str | None = None
    recipe: str | None = None
    protocol: str
    dataset: _Named
    backbone: _Named
    seed: Count
    class_order: list[str]
    task_sizes: list[Annotated[int, Field(gt=0, le=10**6)]]
    accuracy: list[list[Percent]]
    faa: Number
    caa: Number
    forgetting: Number
    sample_accuracy: Number
    trainable_parameters: Count
    digest: str
    seconds: Seconds
    cpu_seconds: Seconds | None = None
    predictions: list[Annotated[tuple[str, Row, Row], Field(strict=False)]] = []
    facts: list[dict[str, Any]] | None = None
    machine: _Machine | None = None
    versions: dict[str, str | None] | None = None
    config: dict[str, Any]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> _Values:
        if self.task_sizes and sum(self.task_sizes) != len(self.class_order):
            raise ValueError("the task sizes do not add up to its classes")
        if any(not 0 <= true < len(self.class_order) for _, true, _ in self.predictions):
            raise ValueError("a prediction is of a class that is not there")
        threads = self.config.get("threads", 1)
        if type(threads) is not int or not 0 < threads <= 10**6 or not isinstance(self.config.get("method", {}), dict):
            raise ValueError("its config is none")
        return self


def load_records(paths: Iterable[Path]) -> list[Record]:
    """The records at `paths`, each a `record.json` or a run folder that holds one."""
    return [_load(Path(path)) for path in paths]


def _load(path: Path) -> Record:
    path = path / "record.json" if path.is_dir() else path
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise DataError(f"There is no record {path}.", "A run writes it when its last task is learned.") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}).", "Give the record.json of a run.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.", "Check the file and its permissions.") from None
    _check(values, path)
    return values  # type: ignore[no-any-return]


def _check(values: Any, path: Path) -> None:
    if not isinstance(values, dict) or "schema" not in values:
        raise DataError(f"{path} is not a record: it names no schema.", "Give the record.json of a run.")
    if values["schema"] != SCHEMA:
        raise DataError(f"{path} has record schema {values['schema']}; this version reads {SCHEMA}.", "Run it again with this version.")
    try:
        _Values.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "whole"
        what = f"no '{where}'" if first["type"] == "missing" else f"a '{where}' that no run writes: {first['msg']}"
        raise DataError(f"{path} has {what}.", "It was cut or edited; run it again.") from None
    tasks = len(values["task_sizes"])
    if not tasks or [len(row) for row in values["accuracy"]] != list(range(1, tasks + 1)):
        raise DataError(f"{path} has an accuracy matrix that does not fit its {tasks} tasks.", "It was edited; run it again.")
