"""Hypothesis strategies: random training steps as graphs of the intermediate representation."""

from dataclasses import replace

from hypothesis import strategies as st

from graph_analysis.ir import Block, Dim, Graph, Lifetime, Op, Role, Symbol, SymbolicDim, Value

SYMBOLS = (
    Symbol("batch", 1, 4, "x", 0),
    Symbol("seq", 2, 5, "x", 1),
    Symbol("rows", 0, None, "choose", None),
)
_DTYPES = {"float32": 4, "bfloat16": 2, "int64": 8}
# Expressions over the symbols with their maxima, as capture would find them.
_EXPRESSIONS: tuple[SymbolicDim, ...] = (
    SymbolicDim("batch", ("batch",), 4, 2),
    SymbolicDim("seq", ("seq",), 5, 3),
    SymbolicDim("batch*seq", ("batch", "seq"), 20, 6),
    SymbolicDim("2*seq + 1", ("seq",), 11, 7),
    SymbolicDim("seq//2", ("seq",), 2, 1),
    SymbolicDim("rows", ("rows",), None, None),
    SymbolicDim("batch*rows", ("batch", "rows"), None, None),
)

fixed_dims = st.integers(0, 6)
dims: st.SearchStrategy[Dim] = st.one_of(fixed_dims, st.sampled_from(_EXPRESSIONS))


@st.composite
def values(draw: st.DrawFn, name: str, role: Role, is_static: bool = False) -> Value:
    """A tensor of up to three dimensions."""
    dtype = draw(st.sampled_from(sorted(_DTYPES)))
    shape = draw(st.lists(fixed_dims if is_static else dims, max_size=3))
    return Value(name, role, dtype, _DTYPES[dtype], tuple(shape))


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 12) -> Graph:
    """A step: parameters, buffers, an input, random operations with views, some gradients."""
    made: list[Value] = [draw(values("x", "input"))]
    names = [f"p{i}" for i in range(draw(st.integers(0, 5)))]
    made += [draw(values(name, "parameter", is_static=True)) for name in names]
    made += [draw(values(f"b{i}", "buffer", True)) for i in range(draw(st.integers(0, 3)))]
    waiting = draw(st.permutations(names))
    ops: list[Op] = []
    for index in range(draw(st.integers(len(names), len(names) + max_ops))):
        inputs = draw(st.lists(st.sampled_from([v.name for v in made]), max_size=3))
        name = f"op{index}"
        value = draw(values(name, "activation"))
        base = draw(st.sampled_from(inputs)) if inputs and draw(st.booleans()) else None
        if waiting and draw(st.booleans()):
            parameter = next(v for v in made if v.name == waiting[0])
            value = Value(
                f"{waiting[0]}.grad",
                "gradient",
                parameter.dtype,
                parameter.item_bytes,
                parameter.shape,
                producer=index,
                ready=index,
                of=waiting[0],
            )
            waiting = waiting[1:]
        else:
            value = Value(
                name, "activation", value.dtype, value.item_bytes, value.shape, index, base
            )
        made.append(value)
        ops.append(Op(name, "generated", tuple(inputs), (value.name,)))
    return Graph(SYMBOLS, tuple(made), tuple(ops), (), "joint_graph", "output_sum", "generated")


@st.composite
def block_lists(draw: st.DrawFn, max_size: int = 30) -> list[Block]:
    """Blocks of an arena with lifetimes that often meet."""
    sizes = st.integers(0, 400)
    times = st.integers(0, 12)
    count = draw(st.integers(0, max_size))
    blocks = []
    for index in range(count):
        first, last = sorted((draw(times), draw(times)))
        blocks.append(Block(f"t{index:02d}", draw(sizes), Lifetime(first, last)))
    return blocks


@st.composite
def training_steps(draw: st.DrawFn, max_ops: int = 8, reach: int = 3) -> Graph:
    """A forward, and its backward in reverse order as autograd runs it, gradients summed up.

    The forward operation i makes v<i> from some of the last few activations and perhaps a
    parameter; its backward reads those again and the gradient of v<i>.
    """
    count = draw(st.integers(2, max_ops))
    values: list[Value] = [Value("v-1", "input", "float32", 4, (4,))]
    ops: list[Op] = []
    for index in range(count):
        near = [f"v{k}" for k in range(max(0, index - reach), index)] or ["v-1"]
        inputs = draw(st.lists(st.sampled_from(near), min_size=1, max_size=2, unique=True))
        if index and f"v{index - 1}" not in inputs:
            inputs.append(f"v{index - 1}")  # nothing is computed in vain
        if draw(st.booleans()):
            parameter = Value(f"p{index}", "parameter", "float32", 4, (draw(st.integers(1, 9)),))
            values.append(parameter)
            inputs.append(parameter.name)
        role: Role = "loss" if index == count - 1 else "activation"
        shape = () if role == "loss" else (draw(st.integers(1, 64)),)
        ops.append(Op(f"op{index}", "generated", tuple(inputs), (f"v{index}",)))
        values.append(Value(f"v{index}", role, "float32", 4, shape, producer=index))
    return _with_backward(values, ops)


def _with_backward(values: list[Value], forward: list[Op]) -> Graph:
    values, ops = list(values), list(forward)
    named = {v.name: v for v in values}
    gradient: dict[str, str] = {}  # of an activation, as far as it is summed up

    def emit(name: str, like: Value, inputs: tuple[str, ...], is_parameter: bool) -> None:
        at = len(ops)
        ops.append(Op(name, "generated", inputs, (name,)))
        role: Role = "gradient" if is_parameter else "backward"
        made = Value(name, role, "float32", 4, like.shape, at)
        values.append(replace(made, ready=at, of=like.name) if is_parameter else made)

    for op in reversed(forward):
        upstream = tuple(filter(None, [gradient.get(op.outputs[0])]))
        for name in op.inputs:
            like = named[name]
            if like.role == "parameter":
                emit(f"{name}.grad", like, (*upstream, *op.inputs), True)
            elif like.role == "activation":
                part = f"{name} from {op.name}"
                emit(part, like, (*upstream, *op.inputs), False)
                if name in gradient:
                    emit(f"{part} summed", like, (gradient[name], part), False)
                    part += " summed"
                gradient[name] = part
    return Graph((), tuple(values), tuple(ops), (), "joint_graph", "loss_fn", "generated")
