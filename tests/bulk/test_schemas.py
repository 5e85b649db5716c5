"""docs/tables.md is the schemas as a page."""

from __future__ import annotations

import pytest

from tenure.bulk.schemas import TABLES, TYPE_NAMES, ddl, schema
from tenure.errors import InvalidArgument
from tests.docs.blocks import DOCS, tables


def test_the_page_has_every_table_and_column():
    pages = (DOCS / "tables.md").read_text().split("\n## ")[1:]
    found = {page.split("`")[1]: next(t for t in tables(page) if t[0][0] == "column") for page in pages[: len(TABLES)]}
    assert list(found) == list(TABLES)
    for name, columns in TABLES.items():
        rows = [row for row in found[name] if row[0].startswith("`")]
        assert rows == [[f"`{c.name}`", TYPE_NAMES[c.type], "yes" if c.nullable else "", c.meaning] for c in columns], (
            name
        )


def test_columns_are_chosen_in_the_order_asked_for():
    assert schema("jobs", ["state", "id"]).names == ["state", "id"]
    assert ddl("counters") == (
        "`tenant` STRING NOT NULL, `queue` STRING NOT NULL, `queue_number` BIGINT NOT NULL, "
        "`counter` STRING NOT NULL, `value` BIGINT NOT NULL"
    )


@pytest.mark.parametrize("columns", [["nope"], [], ["id", "id"]])
def test_columns_that_are_not_there_are_refused(columns: list[str]):
    with pytest.raises(InvalidArgument):
        schema("jobs", columns)


def test_an_unknown_table_is_refused_with_those_there_are():
    with pytest.raises(InvalidArgument, match="jobs, events, leases"):
        schema("job")
