"""An HTTP service that scores lists of items with trained rankers: ``rankgrad serve``.

A request passes through these modules: ``server`` (uvicorn), ``_app`` (routes), ``_admission``
(limits of all requests together), ``_batching`` (the thread that scores), ``_json_requests`` or
``_arrow_requests`` (parsing), ``_served_ranker`` (onnxruntime) and ``_bodies`` (the response).
"""

from rankgrad.extras import requires

with requires("serve"):
    from rankgrad.serving._app import create_app
    from rankgrad.serving._bodies import Limits
    from rankgrad.serving._served_ranker import ServedRanker
    from rankgrad.serving.server import serve

__all__ = ["Limits", "ServedRanker", "create_app", "serve"]
