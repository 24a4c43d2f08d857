"""Pass: cut a model into the units whose ways are chosen one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from graph_analysis.classify import example_bytes
from graph_analysis.ir import Graph
from graph_analysis.partition.pairs import Pair
from graph_analysis.partition.step import Unit


def make_units(
    graph: Graph,
    blocks: Sequence[str],
    pairs: Sequence[Pair],
    change_ns: Mapping[str, int],
    tied: Sequence[Sequence[str]] = (),
) -> tuple[Unit, ...]:
    """Each pair, and each block with the parameters that no pair has.

    blocks are names of modules; a parameter belongs to the one with the longest name that begins
    its own, or to the model itself, "". change_ns is that of a pair, by the name of its last layer.
    tied has all names of each parameter with several; no block is sharded without all its holders.
    """
    sizes = {v.name: example_bytes(v) for v in graph.values if v.role == "parameter"}
    of_pair = {module: pair for pair in pairs for module in (*pair.first, pair.last)}
    rest: dict[str, list[str]] = {block: [] for block in (*blocks, "")}
    for name in sizes:
        if name.rpartition(".")[0] not in of_pair:
            rest[_block_of(name, blocks)].append(name)
    units = [_unit_of(pair, sizes, change_ns.get(pair.last, 0)) for pair in pairs]
    for block, names in rest.items():
        if names:
            prefix = f"{block}." if block else ""
            inside = [module for module in of_pair if module.startswith(prefix)]
            size = sum(sizes[name] for name in names)
            unit = Unit(block or "(model)", (block,), tuple(inside), tuple(names), size)
            may_shard = held_outside((block,), inside, tied) is None
            units.append(replace(unit, may_shard=may_shard))
    return tuple(units)


def held_outside(
    modules: Sequence[str], excluded: Sequence[str], tied: Sequence[Sequence[str]]
) -> tuple[str, str] | None:
    """The names of a parameter in modules, and elsewhere too, of which a part would be untied.

    None if there is none. Modules inside that are excluded are elsewhere.
    """
    for names in tied:
        inside = [_is_in(name, modules) and not _is_in(name, excluded) for name in names]
        if any(inside) and not all(inside):
            return names[inside.index(True)], names[inside.index(False)]
    return None


def _is_in(name: str, modules: Sequence[str]) -> bool:
    return any(not module or name.startswith(f"{module}.") for module in modules)


def _unit_of(pair: Pair, sizes: Mapping[str, int], change_ns: int) -> Unit:
    modules = (*pair.first, pair.last)
    names = [n for m in modules for n in (f"{m}.weight", f"{m}.bias") if n in sizes]
    cut = [name for name in names if name != f"{pair.last}.bias"]
    return Unit(
        name=" + ".join(modules),
        modules=modules,
        excluded=(),
        parameters=tuple(names),
        parameter_bytes=sum(sizes[name] for name in names),
        cut_bytes=sum(sizes[name] for name in cut),
        pair=pair,
        change_ns=change_ns,
    )


def _block_of(name: str, blocks: Sequence[str]) -> str:
    fitting = [block for block in blocks if name.startswith(f"{block}.")]
    return max(fitting, key=len, default="")
