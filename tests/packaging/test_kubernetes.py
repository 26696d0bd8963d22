"""The manifests fit the processes that they start, and each other. No cluster needed; overlays are rendered if there is
a kubectl, and else only looked at."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployment_support import CONFIGS, PROCESS_END_S, ROOT, assert_one_pipeline, config_of, load_all, load_one
from wavepp.infra.config import ENV_PREFIX
from wavepp.infra.rpc import LIVENESS

K8S = ROOT / "k8s"
OVERLAYS = sorted(path.parent for path in K8S.glob("overlays/*/kustomization.yaml"))
Document = dict[str, Any]


class Manifests:
    """A set of objects, and what these tests ask of them."""

    def __init__(self, documents: list[Document]) -> None:
        self.documents = documents

    def of(self, *kinds: str) -> list[Document]:
        return [document for document in self.documents if document["kind"] in kinds]

    @property
    def workloads(self) -> list[Document]:
        return self.of("Deployment", "StatefulSet")

    def matching(self, selector: dict[str, str]) -> list[Document]:
        """The workloads whose pods have these labels."""
        assert selector, "an empty selector is everything"
        return [each for each in self.workloads if selector.items() <= labels(each).items()]

    def env(self, workload: Document, ordinal: int = 0) -> dict[str, str]:
        """The variables of a pod's container, as the kubelet would make them."""
        (container,) = pod(workload)["containers"]
        maps = {each["metadata"]["name"]: each["data"] for each in self.of("ConfigMap")}
        env: dict[str, str] = {}
        for source in container.get("envFrom", []):
            env |= maps[source["configMapRef"]["name"]]
        fields = {
            "status.podIP": "10.1.2.3",
            "metadata.name": f"{workload['metadata']['name']}-{ordinal}",
            "metadata.labels['apps.kubernetes.io/pod-index']": str(ordinal),
        }
        for each in container.get("env", []):
            env[each["name"]] = each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        return env


def pod(workload: Document) -> Document:
    return workload["spec"]["template"]["spec"]


def labels(workload: Document) -> dict[str, str]:
    return workload["spec"]["template"]["metadata"]["labels"]


def ports(workload: Document) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for c in pod(workload)["containers"] for each in c["ports"]}


def is_ours(workload: Document) -> bool:
    return pod(workload)["containers"][0]["command"][0] == "python"


def read_env_file(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split("=", 1) for line in lines]
    assert len({key for key, _ in pairs}) == len(pairs), f"{path}: a variable is there twice"
    return dict(pairs)


@functools.cache
def base_and_etcd() -> Manifests:
    documents: list[Document] = []
    for directory in (K8S / "base", K8S / "etcd"):
        kustomization = load_one(directory / "kustomization.yaml")
        present = {path.name for path in directory.glob("*.yaml")} - {"kustomization.yaml"}
        assert set(kustomization["resources"]) == present
        for name in kustomization["resources"]:
            documents += load_all(directory / name)
        for generator in kustomization.get("configMapGenerator", []):
            data = {key: value for env in generator["envs"] for key, value in read_env_file(directory / env).items()}
            documents.append({"kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data})
    return Manifests(documents)


@functools.cache
def rendered(overlay: Path, kubectl: str) -> Manifests:
    done = subprocess.run([kubectl, "kustomize", str(overlay)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return Manifests(list(yaml.safe_load_all(done.stdout)))


@pytest.fixture(params=["base", *(path.name for path in OVERLAYS)])
def manifests(request: pytest.FixtureRequest) -> Manifests:
    if request.param == "base":
        return base_and_etcd()
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl to render the overlay with")
    return rendered(K8S / "overlays" / request.param, kubectl)


def selectors(node: Any) -> Iterator[dict[str, str]]:
    """Every matchLabels below `node`."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "matchLabels":
                yield value
            else:
                yield from selectors(value)
    elif isinstance(node, list):
        for each in node:
            yield from selectors(each)


# ---- processes ----


def test_every_pod_starts_a_process_with_settings_that_it_takes(
    manifests: Manifests, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = set()
    for workload in filter(is_ours, manifests.workloads):
        (container,) = pod(workload)["containers"]
        config = config_of(container["command"], manifests.env(workload), monkeypatch)
        started.add(container["command"][2])
        assert config.advertise_address == "10.1.2.3", "the pod's own"
        assert (config.bind_port, config.metrics_port) == (ports(workload)["grpc"], ports(workload)["metrics"])
        if "link" in ports(workload):
            assert config.link_port == ports(workload)["link"]
    assert started == set(CONFIGS)


def test_the_pods_of_the_statefulset_are_the_stages_of_one_pipeline(
    manifests: Manifests, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stage,) = [each for each in manifests.workloads if pod(each)["containers"][0]["command"][-1] == "wavepp.stage"]
    assert stage["kind"] == "StatefulSet"
    assert stage["spec"]["podManagementPolicy"] == "Parallel"
    assert stage["spec"]["updateStrategy"] == {"type": "OnDelete"}
    command = pod(stage)["containers"][0]["command"]
    count = stage["spec"]["replicas"]
    assert_one_pipeline([config_of(command, manifests.env(stage, index), monkeypatch) for index in range(count)])


def test_everybody_uses_the_members_of_the_etcd_that_is_there(
    manifests: Manifests, monkeypatch: pytest.MonkeyPatch
) -> None:
    (etcd,) = [each for each in manifests.workloads if not is_ours(each)]
    name, service, count = etcd["metadata"]["name"], etcd["spec"]["serviceName"], etcd["spec"]["replicas"]
    hosts = [f"{name}-{index}.{service}" for index in range(count)]
    for workload in filter(is_ours, manifests.workloads):
        config = config_of(pod(workload)["containers"][0]["command"], manifests.env(workload), monkeypatch)
        assert config.etcd_endpoints == tuple(f"{host}:{ports(etcd)['client']}" for host in hosts)
    env = manifests.env(etcd, 1)
    (container,) = pod(etcd)["containers"]
    words = [re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], word) for word in container["command"]]
    flags = dict(word.split("=", 1) for word in words[1:])
    peers = [f"{host.split('.')[0]}=http://{host}:{ports(etcd)['peer']}" for host in hosts]
    assert flags["--initial-cluster"] == ",".join(peers)
    assert f"{flags['--name']}={flags['--initial-advertise-peer-urls']}" == peers[1]
    assert flags["--advertise-client-urls"] == f"http://{hosts[1]}:{ports(etcd)['client']}"
    for port in ("client", "peer", "metrics"):
        assert flags[f"--listen-{port}-urls"] == f"http://0.0.0.0:{ports(etcd)[port]}"
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert any(flags["--data-dir"].startswith(f"{mount}/") for mount in mounts)


def test_compose_and_kubernetes_agree_on_the_version_of_etcd() -> None:
    image = load_one(ROOT / "docker-compose.yml")["services"]["etcd"]["image"]
    (etcd,) = [each for each in base_and_etcd().workloads if not is_ours(each)]
    assert image == f"${{ETCD_IMAGE:-{pod(etcd)['containers'][0]['image']}}}"


# ---- what every pod has ----


def test_no_deployment_sizes_waves_otherwise_than_a_router_without_settings_does() -> None:
    default = CONFIGS["wavepp.router"].model_fields["policy"].default
    for path in sorted((ROOT / "k8s").rglob("*.env")):
        assert read_env_file(path).get(f"{ENV_PREFIX}POLICY", default) == default, path


def test_pods_fit_the_restricted_standard(manifests: Manifests) -> None:
    for workload in manifests.workloads:
        spec = pod(workload)
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["runAsGroup"] == 10001
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers", "ephemeralContainers"} & set(spec)
        assert spec["enableServiceLinks"] is False, f"they would set variables that begin with {ENV_PREFIX}"
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        kinds = {kind for volume in spec.get("volumes", []) for kind in volume if kind != "name"}
        assert kinds <= {"emptyDir", "persistentVolumeClaim"}


def test_containers_have_requests_limits_and_probes_at_ports_that_they_have(manifests: Manifests) -> None:
    for workload in manifests.workloads:
        for container in pod(workload)["containers"]:
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            assert set(container["resources"]["limits"]) == {"memory"}
            by_name = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert len(by_name) == len(container["ports"]) == len(set(by_name.values()))
            probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
            for name, probe in probes.items():
                assert probe["timeoutSeconds"] >= 10, "a busy process answers late"
                assert "initialDelaySeconds" not in probe
                if not is_ours(workload):
                    assert probe["httpGet"]["port"] in by_name
                    continue
                # A standby is alive without being ready.
                asks_for = {} if name == "readiness" else {"service": LIVENESS}
                assert probe["grpc"] == {"port": by_name["grpc"], **asks_for}
            assert probes["liveness"]["failureThreshold"] > 1


def test_a_pod_is_not_killed_before_its_process_has_ended_by_itself(manifests: Manifests) -> None:
    for workload in filter(is_ours, manifests.workloads):
        assert all("lifecycle" not in container for container in pod(workload)["containers"]), "its time adds up"
        assert pod(workload)["terminationGracePeriodSeconds"] > PROCESS_END_S


def test_what_is_mounted_is_there_and_what_is_there_is_mounted(manifests: Manifests) -> None:
    for workload in manifests.workloads:
        claims = [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])]
        there = [volume["name"] for volume in pod(workload).get("volumes", [])] + claims
        for container in pod(workload)["containers"]:
            assert sorted(mount["name"] for mount in container["volumeMounts"]) == sorted(there)


def test_a_model_is_mounted_where_it_is_looked_for(manifests: Manifests) -> None:
    for workload in filter(is_ours, manifests.workloads):
        env = manifests.env(workload)
        wanted = {env[name] for name in ("WAVEPP_MODEL", "WAVEPP_TOKENIZER") if name in env} - {"emulated"}
        (container,) = pod(workload)["containers"]
        assert {m["mountPath"] for m in container["volumeMounts"] if m["name"] == "model"} == wanted
        assert all(m["readOnly"] for m in container["volumeMounts"] if m["name"] == "model")


# ---- how they fit together ----


def test_selectors_match_the_pods_that_they_mean(manifests: Manifests) -> None:
    for workload in manifests.workloads:
        assert manifests.matching(workload["spec"]["selector"]["matchLabels"]) == [workload]
        for constraint in pod(workload).get("topologySpreadConstraints", []):
            assert manifests.matching(constraint["labelSelector"]["matchLabels"]) == [workload]
    for each in manifests.of("Service"):
        assert len(manifests.matching(each["spec"]["selector"])) == 1
    for each in manifests.of("PodDisruptionBudget"):
        assert len(manifests.matching(each["spec"]["selector"]["matchLabels"])) == 1
    for each in manifests.of("NetworkPolicy"):
        for selector in selectors(each["spec"]):
            # Others than ours are told by labels that they must set themselves.
            outside = set(selector) <= {"wavepp-client", "wavepp-metrics-reader"}
            assert outside != bool(manifests.matching(selector)), selector


def test_services_lead_to_ports_that_pods_have(manifests: Manifests) -> None:
    for service in manifests.of("Service"):
        (workload,) = manifests.matching(service["spec"]["selector"])
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in ports(workload)
            assert port["port"] == ports(workload)[port["targetPort"]], "one number for one thing"
    headless = {
        s["metadata"]["name"]: s["spec"] for s in manifests.of("Service") if s["spec"].get("clusterIP") == "None"
    }
    for workload in manifests.of("StatefulSet"):
        service = headless[workload["spec"]["serviceName"]]
        assert service["publishNotReadyAddresses"] is True
        assert manifests.matching(service["selector"]) == [workload]


def test_network_policies_open_ports_that_pods_have_and_cover_every_pod(manifests: Manifests) -> None:
    covered = []
    for policy in manifests.of("NetworkPolicy"):
        chosen = manifests.matching(policy["spec"]["podSelector"]["matchLabels"])
        covered += [workload["metadata"]["name"] for workload in chosen]
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        for rule in policy["spec"]["ingress"]:
            assert rule["from"], "from nobody in particular is from everybody"
            for port in rule.get("ports", []):
                assert all(port["port"] in ports(workload) for workload in chosen)
    assert set(covered) == {workload["metadata"]["name"] for workload in manifests.workloads}


def test_no_budget_keeps_a_node_from_being_drained(manifests: Manifests) -> None:
    """Of stages all are needed: a budget for them could never be met."""
    for budget in manifests.of("PodDisruptionBudget"):
        (workload,) = manifests.matching(budget["spec"]["selector"]["matchLabels"])
        assert labels(workload)["app.kubernetes.io/component"] in ("router", "directory", "etcd")
        assert budget["spec"]["maxUnavailable"] == 1 < workload["spec"]["replicas"]


def test_an_update_of_the_routers_leaves_one_of_them_ready(manifests: Manifests) -> None:
    (router,) = [each for each in manifests.workloads if labels(each)["app.kubernetes.io/component"] == "router"]
    assert router["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 1 < router["spec"]["replicas"]


# ---- overlays ----


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_an_overlay_has_as_many_pods_as_stages_and_an_image_of_its_own(overlay: Path) -> None:
    kustomization = load_one(overlay / "kustomization.yaml")
    (replicas,) = kustomization["replicas"]
    (generator,) = kustomization["configMapGenerator"]
    literals = dict(literal.split("=", 1) for literal in generator["literals"])
    assert replicas == {"name": "wavepp-stage", "count": int(literals["WAVEPP_STAGES"])}
    assert (generator["name"], generator["behavior"]) == ("wavepp-stage-config", "merge")
    assert set(literals) <= {f"{ENV_PREFIX}{name.upper()}" for name in CONFIGS["wavepp.stage"].model_fields}
    (image,) = kustomization["images"]
    assert image["name"] in {pod(each)["containers"][0]["image"] for each in base_and_etcd().workloads}
    (namespace,) = load_all(overlay / "namespace.yaml")
    assert namespace["metadata"]["name"] == kustomization["namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    used = {*kustomization["resources"], *(patch["path"] for patch in kustomization.get("patches", []))}
    assert {path.name for path in overlay.glob("*.yaml")} - {"kustomization.yaml"} <= used


def test_there_are_overlays() -> None:
    assert {path.name for path in OVERLAYS} == {"example", "emulated"}
