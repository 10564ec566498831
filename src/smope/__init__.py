"""smope: teach an image classifier new classes, again and again, without keeping the old pictures."""

__version__ = "0.1.0.dev0"
