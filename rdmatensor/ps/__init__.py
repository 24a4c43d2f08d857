"""A parameter server: rows that servers hold and update, and that workers pull and push.

    import rdmatensor.ps as ps

    def main(w):
        users = w.table("user", dim=16, rows=944, rule=ps.Adagrad(lr=0.1))
        embedding = ps.Embedding(users)
        for ids, target in batches:
            ((embedding(ids).sum(1) - target) ** 2).mean().backward()
            w.clock()

    ps.run(main, servers=1, mode=ps.SSP(2))

parameter-server.md has the rules.
"""

from __future__ import annotations

from rdmatensor.ps.checkpoint import Checkpoint
from rdmatensor.ps.cluster import Cluster, join
from rdmatensor.ps.dense import Dense
from rdmatensor.ps.kv import KV
from rdmatensor.ps.launch import run
from rdmatensor.ps.modes import SSP, Mode
from rdmatensor.ps.modules import Embedding, EmbeddingBag
from rdmatensor.ps.queue import WorkQueue
from rdmatensor.ps.rules import (
from rdmatensor.ps.pyrules.rule import PythonRule
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Add,
    Assign,
    Init,
    RowAdagrad,
    Rule,
    constant,
    normal,
    uniform,
    zeros,
)
from rdmatensor.ps.saving import Saving
from rdmatensor.ps.server import Server
from rdmatensor.ps.spec import Keys
from rdmatensor.ps.table import Table
from rdmatensor.ps.worker import Worker

__all__ = [
    "KV",
    "SGD",
    "SSP",
    "Adagrad",
    "Adam",
    "AdamW",
    "Add",
    "Assign",
    "Checkpoint",
    "Cluster",
    "Dense",
    "Embedding",
    "EmbeddingBag",
    "Init",
    "Keys",
    "Mode",
    "RowAdagrad",
    "Rule",
    "Saving",
    "Server",
    "PythonRule",
    "Table",
    "WorkQueue",
    "Worker",
    "constant",
    "join",
    "normal",
    "run",
    "uniform",
    "zeros",
]
