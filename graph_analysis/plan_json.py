"""Plans to JSON and back.

A document is {"format", "version", "sha256", "plan"}; sha256 covers the plan in canonical form, so
that damage is detected before the content is used. Reading is strict: every field present, none
unknown, every type exact, and plan_check finds no contradiction. Any failure is a PlanError.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from typing import Literal, cast, get_args, get_origin, get_type_hints

from graph_analysis.errors import PlanError
from graph_analysis.plan import TransferPlan, canonical_json
from graph_analysis.plan_check import check_plan

FORMAT = "transfer-plan"
VERSION = 5


def plan_to_json(plan: TransferPlan) -> str:
    """The document as text, ending in a newline; the same plan gives the same bytes."""
    body = asdict(plan)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "sha256": hashlib.sha256(canonical_json(body).encode()).hexdigest(),
        "plan": body,
    }
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True) + "\n"


def plan_from_json(text: str | bytes) -> TransferPlan:
    """The plan in a document. Raises PlanError, naming what is wrong and where."""
    try:
        document = json.loads(text)
        body = document.get("plan") if isinstance(document, dict) else None
        found = hashlib.sha256(canonical_json(body).encode()).hexdigest()
    except (ValueError, RecursionError) as error:
        raise PlanError(f"not a plan: {type(error).__name__}: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PlanError(f'not a plan: no "format": "{FORMAT}" at the top')
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise PlanError(f"plan has no usable version: {version!r}")
    if version > VERSION:
        raise PlanError(
            f"plan has version {version}, this reader knows up to {VERSION}: "
            "upgrade graph_analysis or write the plan again"
        )
    if version < VERSION:
        raise PlanError(
            f"plan has version {version}, this reader needs {VERSION}: write the plan again"
        )
    if set(document) != {"format", "version", "sha256", "plan"}:
        raise PlanError(f"plan document has the fields {sorted(document)}")
    if document["sha256"] != found:
        raise PlanError(f"plan is damaged: sha256 is {found}, not {document['sha256']!r}")
    plan = decode(TransferPlan, body, "plan")
    assert isinstance(plan, TransferPlan)
    check_plan(plan)
    return plan


def decode(kind: object, data: object, where: str) -> object:
    """data as the type kind, or PlanError; where is the path for its message."""
    if get_origin(kind) is tuple and type(data) is list:
        return _decode_items(get_args(kind), data, where)
    if is_dataclass(kind) and isinstance(kind, type) and type(data) is dict:
        return _decode_fields(kind, data, where)
    if get_origin(kind) is Literal:
        is_right = type(data) is str and data in get_args(kind)
    else:  # a plain type or a union of such; type(), as isinstance() accepts True as int
        is_right = type(data) in (get_args(kind) or (kind,))
    if not is_right:
        raise PlanError(f"{where}: {str(data)[:60]!r} is not a {kind}")
    return data


def _decode_items(kinds: tuple[object, ...], data: list[object], where: str) -> object:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(decode(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if len(data) != len(kinds):
        raise PlanError(f"{where}: {len(data)} items, wanted {len(kinds)}")
    pairs = zip(kinds, data, strict=True)
    return tuple(decode(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(pairs))


def _decode_fields(kind: type, data: dict[str, object], where: str) -> object:
    names = {field.name for field in fields(kind)}
    if set(data) != names:
        wrong = sorted(set(data) ^ names)
        raise PlanError(f"{where}: fields missing or unknown: {wrong}")
    hints = get_type_hints(kind)
    values = {name: decode(hints[name], data[name], f"{where}.{name}") for name in data}
    return cast(Callable[..., object], kind)(**values)
