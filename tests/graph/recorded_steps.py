"""What ranks record of small steps, random ones too, and plans of graphs to hold next to them."""

from hypothesis import strategies as st

from graph_analysis import DataParallel, RecordedOp, RecordedTensor, build_plan
from graph_analysis.ir import Graph, Op, Value
from graph_analysis.plan import TransferPlan

COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "reduce",
    "gather",
    "scatter",
)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
RANKS = 3


def gradient(name: str, *shape: int) -> RecordedTensor:
    return RecordedTensor(f"{name}.grad", "gradient", "float32", 4, shape, name)


def collective(operation: str, items: int, *tensors: RecordedTensor) -> RecordedOp:
    out = {"all_gather": items * RANKS, "reduce_scatter": items // RANKS}.get(operation, items)
    return RecordedOp(
        operation=operation,  # type: ignore[arg-type]  # one of the above
        dtype="float32",
        item_bytes=4,
        size_bytes=4 * items,
        out_bytes=4 * out,
        reduce_op=0,
        root=0 if operation in ROOTED else None,
        peer=None,
        tag=0,
        is_fixed=True,
        tensors=tensors,
    )


def message(source: int, target: int, items: int, *, is_receive: bool, tag: int = 0) -> RecordedOp:
    size = 4 * items
    sizes = (0, size) if is_receive else (size, 0)
    return RecordedOp("send", "float32", 4, sizes[0], sizes[1], 0, source, target, tag, True, ())


STEP = (
    collective("broadcast", 4, RecordedTensor("mean", "buffer", "float32", 4, (4,))),
    collective("all_reduce", 8, gradient("w", 2, 2), gradient("v", 4)),
    collective("all_reduce", 4, gradient("u", 4)),
    collective("all_reduce", 1),
)


@st.composite
def programs(draw: st.DrawFn) -> list[list[RecordedOp]]:
    """What each of three ranks records of one random program, receives moved about."""
    ranks: list[list[RecordedOp]] = [[] for _ in range(RANKS)]
    for _ in range(draw(st.integers(0, 12))):
        items = 3 * draw(st.integers(1, 5))
        if draw(st.booleans()):
            op = collective(draw(st.sampled_from(COLLECTIVES)), items)
            for recording in ranks:
                recording.append(op)
            continue
        source = draw(st.integers(0, RANKS - 1))
        target = (source + draw(st.integers(1, RANKS - 1))) % RANKS
        tag = draw(st.integers(0, 1))
        ranks[source].append(message(source, target, items, is_receive=False, tag=tag))
        room = items + draw(st.integers(0, 1))
        ranks[target].append(message(source, target, room, is_receive=True, tag=tag))
    return ranks


def planned(world_size: int = 2, **gradients: int) -> TransferPlan:
    """The plan of a graph with these parameters, by name and number of items."""
    values, ops = [], []
    for name, items in gradients.items():
        values.append(Value(name, "parameter", "float32", 4, (items,)))
        made = Value(
            f"{name}.grad", "gradient", "float32", 4, (items,), len(ops), None, len(ops), name
        )
        values.append(made)
        ops.append(Op(f"backward of {name}", "assumed", (name,), (made.name,)))
    graph = Graph((), tuple(values), tuple(ops), (), "module", "loss_fn", "test")
    return build_plan(graph, DataParallel(world_size))
