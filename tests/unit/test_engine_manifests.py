"""The manifests of examples/engines have the fields that their engines and RDMA need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "engines"


def closed(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of an object that has these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


TEXT, COUNT, ANY = {"type": "string"}, {"type": "integer", "minimum": 1}, {"type": "object"}
LIMITS = {
    "type": "object",
    "additionalProperties": {"type": "string", "pattern": r"^\d+(Gi|Mi)?$"},
}
CONTAINER = closed(
    {"name": TEXT, "image": TEXT},
    {
        "command": {"type": "array", "items": TEXT},
        "env": {"type": "array", "items": closed({"name": TEXT, "value": TEXT})},
        "volumeMounts": {"type": "array"},
        "resources": closed({"limits": LIMITS}),
        "securityContext": closed(
            {"capabilities": closed({"add": {"type": "array", "items": {"const": "IPC_LOCK"}}})}
        ),
    },
)
CONTAINERS = {"type": "array", "items": CONTAINER, "minItems": 1}
POD = closed(
    {"containers": CONTAINERS},
    {
        "initContainers": CONTAINERS,
        "affinity": closed({"podAntiAffinity": ANY}),
        "volumes": {"type": "array"},
        "hostNetwork": {"type": "boolean"},
        "dnsPolicy": {"const": "ClusterFirstWithHostNet"},
    },
)
TEMPLATE = closed({"spec": POD}, {"metadata": ANY})
START = {"type": "object", "additionalProperties": TEXT}
SPECS = {
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): closed(
        {
            "mlPolicy": closed({"numNodes": COUNT, "torch": closed({"numProcPerNode": COUNT})}),
            "template": closed(
                {
                    "spec": closed(
                        {
                            "replicatedJobs": {
                                "type": "array",
                                "items": closed(
                                    {
                                        "name": TEXT,
                                        "template": closed(
                                            {
                                                "metadata": ANY,
                                                "spec": closed({"template": TEMPLATE}),
                                            }
                                        ),
                                    }
                                ),
                            }
                        }
                    )
                }
            ),
        }
    ),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): closed(
        {
            "runtimeRef": closed({"apiGroup": TEXT, "kind": TEXT, "name": TEXT}),
            "trainer": closed({"numNodes": COUNT}),
        }
    ),
    ("ray.io/v1", "RayCluster"): closed(
        {
            "headGroupSpec": closed({"rayStartParams": START, "template": TEMPLATE}),
            "workerGroupSpecs": {
                "type": "array",
                "items": closed(
                    {
                        "groupName": TEXT,
                        "replicas": COUNT,
                        "minReplicas": COUNT,
                        "maxReplicas": COUNT,
                        "rayStartParams": START,
                        "template": TEMPLATE,
                    }
                ),
            },
        }
    ),
}
DOCUMENTS = [
    (path.name, one)
    for path in sorted(FOLDER.glob("*.yaml"))
    for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]


def pods(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "initContainers" in value:
            yield value
        for one in value.values():
            yield from pods(one)
    elif isinstance(value, list):
        for one in value:
            yield from pods(one)


@pytest.mark.parametrize(("name", "document"), DOCUMENTS)
def test_a_manifest_follows_its_schema(name: str, document: dict[str, Any]) -> None:
    spec = SPECS[document["apiVersion"], document["kind"]]
    whole = closed({"apiVersion": TEXT, "kind": TEXT, "metadata": ANY, "spec": spec})
    jsonschema.validate(document, whole)


def test_pods_of_ranks_are_ready_for_rdma() -> None:
    found = [(name, pod) for name, document in DOCUMENTS for pod in pods(document)]
    assert {name for name, _ in found} == {"trainjob.yaml", "raycluster.yaml"}
    for _, pod in found:
        doctor, rank = pod["initContainers"][0], pod["containers"][0]
        assert doctor["command"][:2] == ["rdmatensor", "doctor"]
        for one in (doctor, rank):
            assert one["image"] == rank["image"]
            assert one["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
            assert one["resources"]["limits"]["rdma/hca_shared_devices_a"] == "1"
        (term,) = pod["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term["topologyKey"] == "kubernetes.io/hostname"


def test_the_schema_refuses_what_is_misspelt() -> None:
    _, document = next(one for one in DOCUMENTS if one[1]["kind"] == "TrainJob")
    spec = SPECS[document["apiVersion"], "TrainJob"]
    with pytest.raises(jsonschema.ValidationError, match="numNode"):
        jsonschema.validate({**document["spec"], "numNode": 2}, spec)


def test_the_job_names_the_runtime() -> None:
    kinds = {one["kind"]: one for _, one in DOCUMENTS}
    reference = kinds["TrainJob"]["spec"]["runtimeRef"]
    assert reference["name"] == kinds[reference["kind"]]["metadata"]["name"]


def test_the_dag_names_its_jobs_and_files() -> None:
    text = (FOLDER / "searches.dag").read_text(encoding="utf-8")
    jobs = dict(re.findall(r"(?m)^JOB (\w+) (\S+)$", text))
    assert len(jobs) == 4
    assert all((FOLDER / file).is_file() for file in jobs.values())
    (related,) = re.findall(r"(?m)^PARENT (.+) CHILD (.+)$", text)
    assert {*related[0].split(), *related[1].split()} == set(jobs)
    for job, file in jobs.items():
        macros = re.findall(r"\$\((\w+)\)", (FOLDER / file).read_text(encoding="utf-8"))
        assert set(macros) == set(re.findall(rf"(?m)^VARS {job} (\w+)=", text))
