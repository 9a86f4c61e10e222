"""What a host cannot do that a point asks for."""

from __future__ import annotations


class Unsupported(Exception):
    """The device cannot do what the point asks."""
