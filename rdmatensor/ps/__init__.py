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
from rdmatensor.ps.driving.driver import Driver
from rdmatensor.ps.driving.functions import FunctionError, register
from rdmatensor.ps.kv import KV
from rdmatensor.ps.launch import drive, run
from rdmatensor.ps.modes import SSP, Mode
from rdmatensor.ps.modules import Embedding, EmbeddingBag
from rdmatensor.ps.pyrules.rule import PythonRule
from rdmatensor.ps.queue import WorkQueue
from rdmatensor.ps.rules import (
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
    "Driver",
    "Embedding",
    "EmbeddingBag",
    "FunctionError",
    "Init",
    "Keys",
    "Mode",
    "PythonRule",
    "RowAdagrad",
    "Rule",
    "Saving",
    "Server",
    "Table",
    "WorkQueue",
    "Worker",
    "constant",
    "drive",
    "join",
    "normal",
    "register",
    "run",
    "uniform",
    "zeros",
]
