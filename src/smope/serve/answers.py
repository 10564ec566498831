"""What is asked and what is answered, in JSON; the descriptions are the interface's documentation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=200, description="the name of a class")]


class Asked(BaseModel):
    """A request's body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Rename(Asked):
    name: Name
    to: Name


class Merge(Asked):
    name: Name
    into: Name


class Remove(Asked):
    name: Name


class Problem(BaseModel):
    error: str = Field(description="what was wrong")
    remedy: str = Field("", description="what to do")


class Guess(BaseModel):
    label: str
    probability: float


class Prediction(BaseModel):
    name: str = Field(description="of the file, as it was sent")
    label: str | None = Field(None, description="the most probable class, also where the picture may be none of these")
    top: list[Guess] = Field(default_factory=list, description="the three most probable classes, best first")
    unknown: bool | None = Field(None, description="whether it is none of these; null while too few pictures were held back to say")
    calibrated: bool = Field(False, description="whether probabilities were fitted to held-back pictures")
    error: str | None = Field(None, description="why it could not be read")


class Predictions(BaseModel):
    predictions: list[Prediction] = Field(description="one a picture, in the order sent")
    changes: int = Field(description="how many changes the model had seen that answered")


class JobState(BaseModel):
    id: str
    kind: Literal["learn", "merge", "rename", "remove", "undo", "export"]
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    place: int = Field(description="how many changes come before it")
    stage: str = Field("", description="what is being done")
    share: float = Field(0.0, description="of the work that is done, 0 to 1")
    left: float | None = Field(None, description="seconds to the end, about")
    remark: str = ""
    report: dict[str, Any] | None = Field(None, description="what an update did")
    error: Problem | None = None


class ClassInfo(BaseModel):
    name: str
    pictures: int = Field(description="learned")
    accuracy: float | None = Field(None, description="percent of its held-back pictures that were recognised when it was last taught")


class Change(BaseModel):
    what: Literal["learn", "rename", "remove", "merge"]
    when: str = Field(description="UTC, ISO 8601")
    classes: list[str]
    new: list[str]
    pictures: int
    accuracy: float | None = Field(
        None, description="percent: mean over the classes of this update of those recognised, where it was checked"
    )


class Health(BaseModel):
    status: Literal["ok", "loading", "failed", "busy"] = Field(description="busy: pictures wait, and for seconds none was read")
    model: Literal["empty", "loading", "ready", "failed"]
    classes: int
    learning: bool
    waiting: int = Field(description="changes that wait their turn")


class About(BaseModel):
    file: str
    version: str
    model: Literal["empty", "loading", "ready", "failed"]
    error: Problem | None = None
    method: str | None = None
    backbone: str | None = None
    image_size: int | None = None
    changes: int = Field(0, description="how many changes the model has seen")
    can_undo: bool = False
    can_export: bool = False
    job: JobState | None = Field(None, description="the change that is under way")
    limits: dict[str, int] = Field(default_factory=dict)


class Experts(BaseModel):
    blocks: list[int] = Field(default_factory=list, description="which blocks of the transformer are prompted")
    images: int = Field(0, description="pictures that were counted")
    usage: list[list[list[float]]] = Field(default_factory=list, description="by block, head and expert: share of pictures that chose it")
    classes: dict[str, list[list[list[float]]]] = Field(
        default_factory=dict, description="the same of each class's own pictures, when it was last taught"
    )
