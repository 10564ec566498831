"""Methods made from a few settings, the others at their defaults."""

from smope.config import TapConfig, TrainConfig
from smope.methods import set_up
from smope.phases import Chance


def made(cls, shape, config=None, *, train=None, tap=None, chance=None, head=None):
    """An untaught method; `config` is a mapping of its fields, or its whole config."""
    train, tap, chance = train or TrainConfig(), tap or TapConfig(kind="off"), chance or Chance(0)
    return cls(set_up(cls, shape, chance, dict(config or {}), train=train, tap=tap, head=head))
