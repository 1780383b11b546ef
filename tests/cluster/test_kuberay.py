"""The manifests: what Kubernetes and KubeRay would refuse, and what we promise of them."""

import copy
import shutil
from functools import cache

import kubernetes_validate
import pytest
import ray
from kubernetes_validate import ValidationError

from dnformer.config import load_config

from .manifests import KUBERAY, OVERLAYS, complaints, objects, pods, ray_spec, rendered

CORE = ["ServiceAccount", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget"]
kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
each_run = pytest.mark.parametrize("overlay", [o for o in OVERLAYS if not o.endswith("cluster")])


@cache
def _render(overlay):
    return rendered(KUBERAY / "overlays" / overlay)


def render(overlay):
    return copy.deepcopy(_render(overlay))


def the(kind, documents):
    (found,) = [d for d in documents if d["kind"] == kind]
    return found


def base():
    return objects((KUBERAY / "base" / "raycluster.yaml").read_text())[0]


def validate(document):
    kubernetes_validate.validate(document, "1.37", strict=True)


def gibibytes(quantity):
    assert quantity.endswith("Gi")
    return int(quantity.removesuffix("Gi")) << 30


FILES = [KUBERAY / "namespace.yaml", *sorted((KUBERAY / "base").glob("[nps]*.yaml"))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_core_file_is_valid(file):
    for document in objects(file.read_text()):
        validate(document)


def test_pods_of_the_base_are_valid():
    templates = [base()["spec"]["headGroupSpec"]["template"]]
    templates += [group["template"] for group in base()["spec"]["workerGroupSpecs"]]
    for number, template in enumerate(templates):
        template["metadata"]["name"] = f"pod-{number}"
        validate({"apiVersion": "v1", "kind": "Pod"} | template)


@pytest.mark.shared
def test_base_is_what_kuberay_takes():
    assert complaints(base()) == []


@kubectl
@pytest.mark.shared
@each_overlay
def test_overlay_is_what_kuberay_takes(overlay):
    kind = "RayCluster" if overlay.endswith("cluster") else "RayJob"
    assert complaints(the(kind, render(overlay))) == []


@kubectl
@each_overlay
def test_overlay_is_valid(overlay):
    documents = render(overlay)
    expected = {"RayCluster"} if overlay.endswith("cluster") else {"RayJob", "ConfigMap"}
    assert {d["kind"] for d in documents} == expected | set(CORE) - {"ConfigMap"}
    for document in documents:
        assert document["metadata"]["namespace"] == "dnformer"
        if document["kind"] in CORE:
            validate(document)
    for spec in pods(documents):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        validate(pod)


@kubectl
@each_overlay
def test_pods_meet_the_restricted_standard(overlay):
    found = list(pods(render(overlay)))
    assert len(found) == (2 if overlay.endswith("cluster") else 3)
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {kind for volume in pod["volumes"] for kind in volume} <= {
            "name", "emptyDir", "ephemeral", "configMap",
        }  # fmt: skip
        for container in containers(pod):
            check_container(container)
    autoscaler = ray_spec(render(overlay))["autoscalerOptions"]
    check_container(autoscaler)


def containers(pod):
    return [*pod.get("initContainers", []), *pod["containers"]]


def check_container(container):
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    # where the image is read-only, its programs write here
    assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert {"name": "HOME", "value": "/tmp"} in container["env"]


@kubectl
@each_overlay
def test_token_comes_from_the_secret(overlay):
    documents = render(overlay)
    assert ray_spec(documents)["authOptions"] == {
        "mode": "token", "secretName": "dnformer-ray-token",
    }  # fmt: skip
    reference = {"secretKeyRef": {"name": "dnformer-ray-token", "key": "auth_token"}}
    for pod in pods(documents):
        env = {entry["name"]: entry for entry in pod["containers"][0]["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"
        assert env["RAY_AUTH_TOKEN"] == {"name": "RAY_AUTH_TOKEN", "valueFrom": reference}
    assert "Secret" not in [d["kind"] for d in documents]


@kubectl
@each_overlay
def test_workers_are_as_their_ray_expects(overlay):
    spec = ray_spec(render(overlay))
    assert spec["rayVersion"] == ray.__version__
    assert spec["enableInTreeAutoscaling"]
    (group,) = spec["workerGroupSpecs"]
    assert 1 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for part in (spec["headGroupSpec"], group):
        pod = part["template"]["spec"]
        env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
        drain_s = int(env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        assert drain_s < pod["terminationGracePeriodSeconds"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        store = int(part["rayStartParams"]["object-store-memory"])
        assert store <= gibibytes(volumes["shm"]["emptyDir"]["sizeLimit"])
        mounts = {
            mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]
        }
        assert mounts.items() >= {"shm": "/dev/shm", "cache": "/cache"}.items()
        assert env["NUMBA_CACHE_DIR"] == "/cache/numba"
        (kernels,) = pod["initContainers"]
        assert kernels["command"][-2:] == ["/cache/numba", "/volume/"]
        assert {"name": "cache", "mountPath": "/volume"} in kernels["volumeMounts"]
    resources = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert ("nvidia.com/gpu" in resources) == overlay.startswith("gpu")


@kubectl
@each_run
def test_config_of_a_job_loads_and_fits_its_workers(overlay, tmp_path):
    documents = render(overlay)
    job, configmap = the("RayJob", documents)["spec"], the("ConfigMap", documents)
    command, path = job["entrypoint"].rsplit(maxsplit=1)
    assert (command, path) == (f"dnformer {overlay.split('/')[1]}", "/etc/dnformer/run.yaml")
    head = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    volume = {"name": "config", "configMap": {"name": configmap["metadata"]["name"]}}
    assert volume in head["volumes"]
    mount = {"name": "config", "mountPath": "/etc/dnformer", "readOnly": True}
    assert mount in head["containers"][0]["volumeMounts"]
    file = tmp_path / "run.yaml"
    file.write_text(configmap["data"]["run.yaml"])
    config = load_config(file)
    (group,) = job["rayClusterSpec"]["workerGroupSpecs"]
    assert 1 <= config.train.max_workers <= group["maxReplicas"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert config.train.threads + config.loader.threads <= int(limits["cpu"])
    assert config.train.use_gpu == ("nvidia.com/gpu" in limits)
    assert config.cache.dir.startswith("/cache/")
    assert config.cache.max_bytes <= cache_bytes(group["template"]["spec"])
    if overlay.endswith("tune"):
        # a search counts its room when it begins
        assert group["minReplicas"] == group["maxReplicas"]
        assert config.tune.space
    else:
        assert config.train.min_workers < config.train.max_workers


def cache_bytes(pod):
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "cache"]
    if "emptyDir" in volume:
        return gibibytes(volume["emptyDir"]["sizeLimit"])
    claim = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
    return gibibytes(claim["resources"]["requests"]["storage"])


@kubectl
@each_run
def test_job_ends_and_leaves_nothing(overlay):
    job = the("RayJob", render(overlay))["spec"]
    assert job["shutdownAfterJobFinishes"]
    for name in (
        "backoffLimit", "activeDeadlineSeconds", "preRunningDeadlineSeconds",
        "ttlSecondsAfterFinished",
    ):  # fmt: skip
        assert job[name] > 0
    # the cluster, with its GPUs, is there for so long
    assert job["ttlSecondsAfterFinished"] <= 300


@kubectl
def test_one_line_names_the_image_of_all_pods(tmp_path):
    shutil.copytree(KUBERAY, tmp_path / "kuberay")
    overlay = tmp_path / "kuberay/overlays/gpu/train"
    file = overlay / "kustomization.yaml"
    ours = "{name: dnformer, newName: dnformer, newTag: 0.1.0-gpu}"
    assert file.read_text().count(ours) == 1
    theirs = "{name: dnformer, newName: registry.example.com/ml/dnformer, newTag: v2}"
    file.write_text(file.read_text().replace(ours, theirs))
    images = [c["image"] for pod in pods(rendered(overlay)) for c in containers(pod)]
    assert images == ["registry.example.com/ml/dnformer:v2"] * 5


def test_only_named_peers_reach_a_cluster():
    policies = objects((KUBERAY / "base" / "networkpolicy.yaml").read_text())
    reached = []
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        assert policy["spec"]["podSelector"]["matchLabels"].items() >= LABEL.items()
        for rule in policy["spec"]["ingress"]:
            ports = [port["port"] for port in rule.get("ports", [])]
            for peer in rule["from"]:
                (selector,) = peer.values()
                reached.append((list(peer), selector["matchLabels"], ports))
    assert reached == [
        (["podSelector"], LABEL, []),
        (
            ["namespaceSelector"],
            {"kubernetes.io/metadata.name": "monitoring"},
            [8080, 44217, 44227],
        ),
        (["namespaceSelector"], {"kubernetes.io/metadata.name": "kuberay-system"}, [8265]),
        (["namespaceSelector"], {"dnformer/client": "true"}, [8265]),
    ]


LABEL = {"app.kubernetes.io/part-of": "dnformer"}


def test_monitor_scrapes_ports_that_the_pods_have():
    (monitor,) = objects((KUBERAY / "podmonitor.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"] == LABEL
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["dnformer"]}
    scraped = [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    head = base()["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert {port["name"] for port in head["ports"]} >= set(scraped)
    assert "metrics" in scraped


def planted(document, change):
    document = copy.deepcopy(document)
    change(document)
    return document


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["spec"].update(podSelecter={}),
        lambda d: d["spec"].update(policyTypes="Ingress"),
        lambda d: d["spec"]["ingress"][0]["from"][0].update(podSelectors={}),
    ],
    ids=["misspelt", "type", "misspelt-inside"],
)
def test_broken_network_policy_is_refused(change):
    policy = objects((KUBERAY / "base" / "networkpolicy.yaml").read_text())[0]
    validate(policy)
    with pytest.raises(ValidationError):
        validate(planted(policy, change))


@kubectl
@pytest.mark.shared
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.update(backofLimit=3), "backofLimit"),
        (lambda s: s.update(activeDeadlineSeconds="1h"), "activeDeadlineSeconds"),
        (lambda s: s["rayClusterSpec"]["headGroupSpec"].update(rayStartParam={}), "rayStartParam"),
        (lambda s: s["rayClusterSpec"]["authOptions"].update(mode="tokens"), "mode"),
        (lambda s: next(pods(s))["containers"][0].update(volumeMount=[]), "volumeMount"),
    ],
    ids=["misspelt", "type", "misspelt-inside", "enum", "misspelt-in-pod"],
)
def test_broken_job_is_refused(change, said):
    job = the("RayJob", render("gpu/train"))
    found = complaints(planted(job, lambda d: change(d["spec"])))
    assert len(found) == 1
    assert said in found[0]


@kubectl
def test_own_folder_of_the_readme_renders(tmp_path):
    text = (KUBERAY / "README.md").read_text()
    blocks = [b.removeprefix("yaml\n") for b in text.split("```") if b.startswith("yaml\n")]
    kustomization, patches = blocks
    shutil.copytree(KUBERAY, tmp_path / "dnformer" / "cluster" / "kuberay")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "run.yaml").write_text("name: mine\n")
    (folder / "kustomization.yaml").write_text(kustomization + patches)
    documents = rendered(folder)
    assert the("ConfigMap", documents)["data"] == {"run.yaml": "name: mine\n"}
    job = the("RayJob", documents)["spec"]["rayClusterSpec"]
    head, worker = (
        part["template"]["spec"] for part in (job["headGroupSpec"], job["workerGroupSpecs"][0])
    )
    named = [v["configMap"]["name"] for v in head["volumes"] if "configMap" in v]
    assert named == [the("ConfigMap", documents)["metadata"]["name"]]
    images = [c["image"] for pod in pods(documents) for c in containers(pod)]
    assert images == ["registry.example.com/ml/dnformer:0.1.0-gpu"] * 5
    assert {"name": "cache", "emptyDir": {"sizeLimit": "400Gi"}} in worker["volumes"]
    check_container(worker["containers"][0])
    assert worker["containers"][0]["resources"]["limits"]["ephemeral-storage"] == "420Gi"
