"""What runs on this backend and on Gloo, case by case; read by the tests, which know no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A function "module:function" of this folder that returns what both backends must agree on.

    limit: how far numbers may be apart, relative to the larger; 0.0 asks for the same bits, which
        sums of two ranks have whatever their order.
    is_own_group: it makes its default group itself.
    """

    function: str
    limit: float = 0.0
    is_own_group: bool = False

    @property
    def name(self) -> str:
        return self.function.removeprefix("oracle_").replace(":", "-")


TWO_RANKS = (
    Case("oracle_ddp:comm_hooks"),
    Case("oracle_ddp:uneven_inputs"),
    Case("oracle_ddp:no_sync"),
    Case("oracle_ddp:post_local_sgd"),
    Case("oracle_ddp:model_averaging"),
    Case("oracle_zero:zero_redundancy_optimizer"),
    Case("oracle_zero:overlapped_with_ddp"),
    Case("oracle_sharded:fsdp1"),
    Case("oracle_sharded:fsdp1_state"),
    Case("oracle_sharded:fsdp2"),
    Case("oracle_tensor:redistribution"),
    Case("oracle_tensor:operations"),
    Case("oracle_tensor:parallelized_module"),
    Case("oracle_tensor:sequence_parallel"),
    Case("oracle_calls:objects"),
    Case("oracle_calls:functional_calls"),
    Case("oracle_calls:differentiable"),
    Case("oracle_state:saved_and_loaded"),
    Case("oracle_state:saved_meanwhile"),
    Case("oracle_pipeline:schedules_of_one_stage"),
    Case("oracle_pipeline:schedules_of_two_stages"),
    Case("oracle_compile:collectives"),
    Case("oracle_compile:inductor"),
    Case("oracle_compile:ddp"),
    Case("oracle_lightning:fabric", is_own_group=True),
)
FOUR_RANKS = (
    Case("oracle_mesh:axes"),
    Case("oracle_mesh:redistribution"),
    Case("oracle_mesh:made_of_groups"),
    Case("oracle_mesh:reshaped"),
    Case("oracle_mesh:hybrid_sharding"),
    Case("oracle_mesh:tensor_and_data"),
    Case("oracle_mesh:stages_and_data"),
    Case("oracle_mesh:local_sgd", limit=1e-5),
    Case("oracle_mesh:hierarchical_averaging", limit=1e-5),
)
