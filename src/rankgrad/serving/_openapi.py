"""OpenAPI schemas of the service's requests and responses, which ``_app`` adds to its routes."""

from __future__ import annotations

from typing import Any

from rankgrad.serving._bodies import ARROW, JSON


def _array(items: dict[str, Any]) -> dict[str, Any]:
    """The schema of an array."""
    return {"type": "array", "items": items}


def _object(required: list[str], properties: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    """The schema of an object."""
    return {"type": "object", "required": required, "properties": properties, **keywords}


_TEXT = {"type": "string"}
_VALUE = {
    "description": "A number; the name of a category or its code; null where it is missing.",
    "type": ["number", "string", "null"],
}
_ITEM = {
    "description": "All features in the order of training; or features by name.",
    "oneOf": [_array(_VALUE), {"type": "object", "additionalProperties": _VALUE}],
}
_LIST = _object(
    ["items"],
    {"id": {"type": ["string", "integer", "null"]}, "items": _array(_ITEM)},
    additionalProperties=False,
)
_BODY = _object(
    ["lists"],
    {"lists": _array(_LIST)},
    additionalProperties=False,
    example={"lists": [{"id": "q1", "items": [[0.1, 2.0], [0.7, 1.0]]}]},
)
_ARROW: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}

#: The body of a request to score lists.
REQUEST: dict[str, Any] = {
    "requestBody": {"required": True, "content": {JSON: {"schema": _BODY}, ARROW: _ARROW}}
}

_SCORED_LIST = _object(
    ["scores", "order"],
    {
        "id": {"type": ["string", "integer"]},
        "scores": _array({"type": "number"}),
        "order": _array({"type": "integer"}),
    },
)
_SCORED = _object(
    ["model", "version", "lists"], {"model": _TEXT, "version": _TEXT, "lists": _array(_SCORED_LIST)}
)
_REASON = _object(["field", "message"], {"field": {"type": ["string", "null"]}, "message": _TEXT})
_ERROR = _object(["error"], {"error": _REASON})


def _error(description: str) -> dict[str, Any]:
    """The response of an error."""
    return {"description": description, "content": {JSON: {"schema": _ERROR}}}


#: The responses to a request to score lists.
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Scores, and places of items from the best on.",
        "content": {JSON: {"schema": _SCORED}, ARROW: _ARROW},
    },
    400: _error("The body is not JSON, or not an Arrow stream."),
    404: _error("There is no such ranker."),
    408: _error("The body did not arrive in time."),
    413: _error("The body, a list, or all lists together are too large."),
    415: _error("The content type is neither JSON nor Arrow."),
    422: _error("A field is wrong."),
    500: _error("The service failed; its log says why."),
    503: {
        **_error("Too many requests are in progress, or the service is stopping."),
        "headers": {"retry-after": {"description": "Seconds.", "schema": {"type": "integer"}}},
    },
}
#: The responses, other than success, to a request for one model.
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: _error("There is no such ranker.")}
#: The response of ``/ready`` while the service is stopping.
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"description": "The service is stopping."}}
#: The response of ``/metrics``.
METRICS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Text.", "content": {"text/plain": {"schema": _TEXT}}}
}
