"""The Kubernetes manifests as they are applied, and schemas to hold them against."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

KUBERAY = Path(__file__).parents[2] / "cluster" / "kuberay"
OVERLAYS = [f"{on}/{what}" for on in ("cpu", "gpu") for what in ("cluster", "train", "tune")]
CRDS = Path(__file__).parents[3] / "shared" / "kuberay"

Object = dict[str, Any]


def objects(text: str) -> list[Object]:
    """The documents of a YAML text."""
    return [document for document in yaml.safe_load_all(text) if document]


def rendered(overlay: Path) -> list[Object]:
    """What `kubectl apply -k` would send."""
    kubectl = shutil.which("kubectl")
    assert kubectl is not None
    done = subprocess.run(
        [kubectl, "kustomize", str(overlay)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def ray_spec(documents: list[Object]) -> Object:
    """The spec of the one Ray cluster, by itself or in a job."""
    (found,) = [d for d in documents if d["kind"] in ("RayCluster", "RayJob")]
    return found["spec"] if found["kind"] == "RayCluster" else found["spec"]["rayClusterSpec"]


def pods(value: Any) -> Iterator[Object]:
    """All pod specs inside."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for child in value.values():
            yield from pods(child)
    elif isinstance(value, list):
        for child in value:
            yield from pods(child)


def complaints(document: Object) -> list[str]:
    """Where a RayCluster or RayJob differs from KubeRay's schema, and how."""
    text = (CRDS / f"{document['kind'].lower()}.v1.json").read_text()
    schema = json.loads(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object"}
    found = Draft202012Validator(_strict(schema)).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]


def _strict(schema: Any) -> Any:
    """The API server's view: unknown fields are refused, a quantity is a number or a text."""
    if isinstance(schema, list):
        return [_strict(child) for child in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    strict = {key: _strict(child) for key, child in schema.items()}
    if isinstance(schema.get("properties"), dict):
        strict.setdefault("additionalProperties", False)
    return strict
