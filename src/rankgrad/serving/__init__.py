"""A service that scores lists of items with trained rankers, over HTTP."""

from rankgrad.serving._app import create_app
from rankgrad.serving._bodies import Limits
from rankgrad.serving._served_ranker import ServedRanker
from rankgrad.serving.server import serve

__all__ = ["Limits", "ServedRanker", "create_app", "serve"]
