"""A service that scores lists of items with trained rankers, over HTTP."""

from rankgrad.serving.app import create_app
from rankgrad.serving.bodies import Limits
from rankgrad.serving.ranker import ServedRanker
from rankgrad.serving.server import serve

__all__ = ["Limits", "ServedRanker", "create_app", "serve"]
