"""The requests and responses of the service as OpenAPI describes them."""

from __future__ import annotations

from typing import Any

from rankgrad.serving._bodies import ARROW, JSON

_VALUE = {
    "description": "A number; the name of a category or its code; null where it is missing.",
    "type": ["number", "string", "null"],
}
_ITEM = {
    "description": "All features in the order of training; or features by name.",
    "oneOf": [
        {"type": "array", "items": _VALUE},
        {"type": "object", "additionalProperties": _VALUE},
    ],
}
_LIST = {
    "type": "object",
    "required": ["items"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": ["string", "integer", "null"]},
        "items": {"type": "array", "items": _ITEM},
    },
}
_BODY = {
    "type": "object",
    "required": ["lists"],
    "additionalProperties": False,
    "properties": {"lists": {"type": "array", "items": _LIST}},
    "example": {"lists": [{"id": "q1", "items": [[0.1, 2.0], [0.7, 1.0]]}]},
}
_ARROW: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}

#: The body of a request to score lists.
REQUEST: dict[str, Any] = {
    "requestBody": {"required": True, "content": {JSON: {"schema": _BODY}, ARROW: _ARROW}}
}

_SCORED = {
    "type": "object",
    "required": ["model", "version", "lists"],
    "properties": {
        "model": {"type": "string"},
        "version": {"type": "string"},
        "lists": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["scores", "order"],
                "properties": {
                    "id": {"type": ["string", "integer"]},
                    "scores": {"type": "array", "items": {"type": "number"}},
                    "order": {"type": "array", "items": {"type": "integer"}},
                },
            },
        },
    },
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["field", "message"],
            "properties": {
                "field": {"type": ["string", "null"]},
                "message": {"type": "string"},
            },
        }
    },
}


def _error(description: str) -> dict[str, Any]:
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
        "headers": {
            "retry-after": {"description": "Seconds.", "schema": {"type": "integer"}},
        },
    },
}
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: _error("There is no such ranker.")}
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"description": "The service is stopping."}}
METRICS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
