"""The files of deploy/ name commands, settings, probes, metrics and files that are there.

Built and run by hand: the container file with buildah; the manifests against Kubernetes' own schemas; the systemd unit by
`systemd-analyze` (docs/deployment.md says which).
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it carries no types

from tenure.cli.main import cli
from tenure.settings import SETTINGS, variable
from tests.docs.blocks import ROOT
from tests.docs.test_monitoring import defined

CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()
MANIFESTS: dict[tuple[str, str], dict[str, Any]] = {
    (one["kind"], one["metadata"]["name"]): one
    for one in yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
}
VARIABLES = {variable(name) for name in SETTINGS}


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each pod, and each container of it."""
    for manifest in MANIFESTS.values():
        pod = manifest["spec"].get("template", {}).get("spec", {})
        for container in pod.get("containers", ()):
            yield pod, container


def parses(arguments: list[str]) -> None:
    """Raises click.UsageError for arguments that the command does not take."""
    command, *rest = arguments
    with cli.commands[command].make_context(command, rest):
        pass


def test_the_container_starts_a_command_and_copies_files_that_exist():
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", CONTAINERFILE, re.MULTILINE)
    assert json.loads(entry) == ["tenure"]
    (command,) = re.findall(r"^CMD (.+)$", CONTAINERFILE, re.MULTILINE)
    parses(json.loads(command))
    assert set(re.findall(r"TENURE_\w+", CONTAINERFILE)) <= VARIABLES
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for line in re.findall(r"^COPY (?!--from)(.+)$", CONTAINERFILE, re.MULTILINE):
        for source in shlex.split(line)[:-1]:
            assert (ROOT / source).exists()
            assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), f".dockerignore leaves {source} out"


@pytest.mark.parametrize(("pod", "container"), list(containers()), ids=lambda value: value.get("name", ""))
def test_a_pod_runs_a_command_with_settings_and_volumes_that_exist(pod: dict[str, Any], container: dict[str, Any]):
    parses([str(word) for word in container["args"]])
    assert {each["name"] for each in container["env"]} <= VARIABLES
    claims = {
        claim["metadata"]["name"] for one in MANIFESTS.values() for claim in one["spec"].get("volumeClaimTemplates", ())
    }
    volumes = {volume["name"] for volume in pod["volumes"]} | claims
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    ports = {port["containerPort"] for port in container.get("ports", ())}
    for probe in ("readinessProbe", "livenessProbe"):
        if probe in container:
            assert container[probe]["httpGet"]["port"] in ports
            assert container[probe]["httpGet"]["path"] in ("/readyz", "/healthz")


def test_selectors_find_their_pods():
    for kind in ("StatefulSet", "Deployment"):
        for (found, _), manifest in MANIFESTS.items():
            if found == kind:
                labels = manifest["spec"]["template"]["metadata"]["labels"]
                assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
    service = MANIFESTS["Service", "tenure"]["spec"]
    server = MANIFESTS["StatefulSet", "tenure"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= server.items()


def test_keda_scales_a_deployment_by_metrics_that_exist():
    """The fields are those of KEDA's own definition; values of a trigger's metadata are strings."""
    spec = MANIFESTS["ScaledObject", "emails-worker"]["spec"]
    assert ("Deployment", spec["scaleTargetRef"]["name"]) in MANIFESTS
    assert spec.keys() <= {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "cooldownPeriod", "triggers"}
    for trigger in spec["triggers"]:
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        assert set(re.findall(r"\btenure_\w+", trigger["metadata"]["query"])) <= defined().keys()
