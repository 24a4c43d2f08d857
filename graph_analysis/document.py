"""Documents of this package as JSON, with a sha256 that shows damage before anything is used."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar, cast

from graph_analysis.errors import PlanError
from graph_analysis.plan import canonical_json
from graph_analysis.plan_json import decode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Body = TypeVar("Body", bound="DataclassInstance")


def fingerprint(body: "DataclassInstance") -> str:
    """The sha256 of the content, equal for equal values only."""
    return hashlib.sha256(canonical_json(asdict(body)).encode()).hexdigest()


def write_document(kind: str, version: int, body: "DataclassInstance") -> str:
    """The document as text, ending in a newline; the same body gives the same bytes."""
    document = {
        "format": kind,
        "version": version,
        "sha256": fingerprint(body),
        "body": asdict(body),
    }
    return json.dumps(document, sort_keys=True, indent=1) + "\n"


def read_document(kind: str, version: int, text: str | bytes, body: type[Body]) -> Body:
    """The inverse of write_document(). PlanError for anything else, naming what is wrong."""
    try:
        document = json.loads(text)
        content = document.get("body") if isinstance(document, Mapping) else None
        found = hashlib.sha256(canonical_json(content).encode()).hexdigest()
    except (ValueError, RecursionError) as error:
        raise PlanError(f"not a {kind}: {type(error).__name__}: {error}") from error
    if not isinstance(document, Mapping) or document.get("format") != kind:
        raise PlanError(f'not a {kind}: no "format": "{kind}" at the top')
    if document.get("version") != version:
        raise PlanError(
            f"{kind} has version {document.get('version')!r}, this reader needs {version}"
        )
    if document.get("sha256") != found:
        raise PlanError(f"{kind} is damaged: sha256 is {found}, not {document.get('sha256')!r}")
    return cast("Body", decode(body, content, kind))
