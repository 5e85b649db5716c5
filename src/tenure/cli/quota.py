"""quota: show and change the limits of a tenant."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click
import msgspec

from tenure.cli import json_shapes
from tenure.cli.command import command
from tenure.cli.output import Cell, strong
from tenure.cli.session import Session
from tenure.model.quota import Quota, QuotaInfo

_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
        if found is None:
            self.fail(f"{value!r} is not a size: bytes, or a number with k, M, G or T", param, ctx)
        return int(found[1]) * _SIZES[found[2]]


@command(
    "quota",
    examples=(
        ("The quotas, and what each tenant has waiting:", "tenure quota"),
        (
            "A million waiting jobs of 2 GiB together, and a thousand new ones a second:",
            "tenure quota acme --max-waiting 1000000 --max-bytes 2G --rate 1000/s",
        ),
        ("Fifty requests to the server a second:", "tenure quota acme --requests 50/s"),
        ("No limits any more:", "tenure quota acme --lift"),
    ),
    short_help="Show or change a tenant's quota.",
)
@click.argument("tenants", metavar="[TENANT]", nargs=-1)
@click.option("--max-waiting", type=int, help="Refuse enqueues beyond this many waiting jobs, over all its queues.")
@click.option("--max-bytes", type=_Size(), help="Refuse enqueues beyond this many bytes of waiting payloads (2G).")
@click.option("--rate", help="Refuse enqueues beyond so many jobs in a time, as 100/s or 10/m.")
@click.option("--requests", help="Refuse requests to a server beyond so many in a time.")
@click.option("--lift", is_flag=True, help="Start from no quota, not from the present one.")
def quota(session: Session, tenants: Sequence[str], lift: bool, **given: object) -> None:
    """Change the given limits of TENANT and keep the others; with no option, show them; with no TENANT, show all.

    Existing jobs stay, and jobs that become ready again (retried, released, replayed) are never refused.
    """
    changes = {name: value for name, value in given.items() if value is not None}
    if len(tenants) > 1 or (not tenants and (changes or lift)):
        raise click.UsageError("Name one TENANT.")
    tenant = tenants[0] if tenants else None
    with session.store() as store:
        if tenant is not None and (changes or lift):
            present = [] if lift else store.quotas(tenant)
            store.set_quota(tenant, msgspec.structs.replace(present[0].quota if present else Quota(), **changes))
        found = store.quotas(tenant)
    if session.json:
        session.out.emit_all(json_shapes.quota(info) for info in found)
    elif found:
        _table(session, found)
    else:
        session.out.say("no quotas" if tenant is None else f"{tenant} has no quota")


def _table(session: Session, found: Sequence[QuotaInfo]) -> None:
    rows: list[list[Cell]] = []
    for info in found:
        quota = info.quota
        rows.append(
            [
                strong(info.tenant),
                f"{info.waiting:,} of {_limit(quota.max_waiting)}",
                f"{info.bytes:,} of {_limit(quota.max_bytes)}",
                "any" if quota.rate is None else str(quota.rate),
                "any" if quota.requests is None else str(quota.requests),
            ]
        )
    session.out.table(["tenant", ">waiting", ">bytes", ">rate", ">requests"], rows)


def _limit(value: int | None) -> str:
    return "any" if value is None else f"{value:,}"
