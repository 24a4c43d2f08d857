"""Graphs with views, constants, sub-graphs and shared gradients."""

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402  needs torch

from graph_analysis import DataParallel, TransferPlan, analyze  # noqa: E402
from graph_analysis.capture import capture, check_factory, resize_batch  # noqa: E402
from graph_analysis.errors import ArgumentError, CaptureError  # noqa: E402
from graph_analysis.plan_check import check_plan  # noqa: E402

pytestmark = pytest.mark.timeout(600)


def _plan(model: nn.Module, *inputs: object) -> TransferPlan:
    plan = analyze(model, inputs, strategy=DataParallel(2))
    check_plan(plan)
    return plan


class Conditional(nn.Module):
    """Control flow that torch can keep in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, self.linear, lambda y: -self.linear(y), (x,))


def test_inside_of_control_flow_is_said_to_be_unseen() -> None:
    plan = _plan(Conditional(), torch.randn(3, 4))
    assert plan.source == "joint_graph"
    assert {o.subject for o in plan.omissions} == {"inside of cond", "inside of cond_1"}
    assert sorted(str(t.parameter) for t in plan.tensors if t.role == "gradient") == [
        "linear.bias",
        "linear.weight",
    ]


class Splitting(nn.Module):
    """Three views of one product, and a tensor that is no parameter and no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.offset = torch.ones(2)

    def forward(self, *inputs: Tensor) -> Tensor:
        a, b, c = self.linear(inputs[0]).split(2, -1)
        return a * b + c * self.offset * inputs[1]


def test_views_own_no_memory_and_constants_do() -> None:
    graph = capture(Splitting(), (torch.randn(3, 4), torch.randn(3, 2)))
    assert graph.source == "joint_graph"
    split = next(op for op in graph.ops if "split" in op.target)
    product = next(v for v in graph.values if v.name == split.inputs[0])
    views = [v for v in graph.values if v.name in split.outputs]
    assert [v.alias_of for v in views] == [product.name] * 3
    readers = [op for op in graph.ops if split.outputs[0] in op.inputs]
    assert readers, "the first view is read by the multiplication"
    plan = _plan(Splitting(), torch.randn(3, 4), torch.randn(3, 2))
    names = {t.name for t in plan.tensors}
    assert product.name in names
    assert not names & set(split.outputs)
    assert [t.shape for t in plan.tensors if t.role == "constant"] == [(2,)]
    assert [t.name for t in plan.tensors if t.role == "input"] == ["inputs_0", "inputs_1"]


class SharedGradient(nn.Module):
    """Two parameters whose gradients are one value: torch's joint export refuses it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(3))
        self.b = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.a + self.b)


def test_two_gradients_of_one_value_are_both_planned() -> None:
    plan = _plan(SharedGradient(), torch.randn(3))
    assert sorted(str(t.parameter) for t in plan.tensors if t.role == "gradient") == ["a", "b"]
    assert plan.omissions  # the reason why it is the module's plan


class Bare(nn.Module):
    """The gradient of p is the expanded gradient of a sum: a view of less memory than p."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.p + x


def test_gradient_that_is_a_view_of_something_else_gets_its_own_memory() -> None:
    plan = _plan(Bare(), torch.randn(4))
    gradient = next(t for t in plan.tensors if t.role == "gradient")
    assert (gradient.shape, gradient.size_bytes) == ((4,), 16)
    assert any(t.role == "backward" and t.size_bytes == 4 for t in plan.tensors)


def test_model_without_a_floating_output_says_so() -> None:
    plan = _plan(nn.Embedding(3, 4).requires_grad_(False), torch.tensor([1]))
    assert plan.source == "module"  # nothing in it can be trained

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.argmax()

    plan = _plan(Counting(), torch.randn(3))
    assert "give a loss_fn" in plan.omissions[0].reason


def test_reason_holds_no_address() -> None:
    """Two objects of one model differ in addresses, and must not differ in their plans."""

    class Failing(nn.Module):
        def forward(self, _x: Tensor) -> Tensor:
            raise RuntimeError(f"{object()!r} is of no use")

    reasons = {_plan(Failing(), torch.randn(3)).omissions[0].reason for _ in range(2)}
    assert reasons == {"RuntimeError: <object object at 0x...> is of no use"}


def test_batch_is_resized_by_repeating_or_dropping_rows() -> None:
    x = torch.arange(6).reshape(3, 2)
    longer, number = resize_batch(({"x": x}, 7), 5)
    assert number == 7
    assert longer["x"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]
    assert resize_batch((x,), 1)[0].tolist() == [[0, 1]]
    for bad in (torch.tensor(1.0), torch.empty(0, 2)):
        with pytest.raises(ArgumentError, match="no rows"):
            resize_batch((bad,), 2)


def test_factory_results_are_checked() -> None:
    model, inputs, loss_fn = check_factory((nn.Identity(), torch.ones(2)))
    assert isinstance(model, nn.Identity)
    assert (len(inputs), loss_fn) == (1, None)
    for made in ((nn.Identity(), 5), (nn.Identity(), (), "loss")):
        with pytest.raises(CaptureError):
            check_factory(made)


class Shared(nn.Module):
    """A module that has two names, and one whose weight is another's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.second = self.first
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first[0].weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.tied(self.second(self.first(x)))
        return out


def test_a_module_with_two_names_is_left_as_it_was() -> None:
    """To swap its tensors by both names puts back what was swapped in the first time."""
    model = Shared()
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    plan = _plan(model, torch.ones(3, 4))
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert all(after[name] is tensor for name, tensor in before.items())
    assert plan.source == "joint_graph"
    assert sorted(str(t.parameter) for t in plan.tensors if t.role == "gradient") == [
        "first.0.bias",
        "first.0.weight",
        "first.1.bias",
        "first.1.weight",
    ]
    model(torch.ones(3, 4)).sum().backward()
    assert all(type(p.grad) is Tensor for p in model.parameters())
