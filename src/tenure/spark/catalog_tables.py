"""Tables of Spark's catalog: `CREATE TABLE jobs USING tenure OPTIONS (url 'rocksdb:/data', table 'jobs')`.

Spark gives a table's options to a Python data source when the table is made, and not when it is read. So they are kept
with the table's schema, as metadata of its first column: that is given to each reader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tenure.bulk import schemas
from tenure.spark import table_reader
from tenure.spark.options import checked, choice

#: The option that Spark adds when it makes a table: the name of the format.
_PROVIDER = "provider"
_OPTION = "option."
_METADATA = "tenure"


def is_made(options: Mapping[str, str]) -> bool:
    """Whether Spark asks for the schema of a table of its catalog that is being made."""
    return _PROVIDER in options


def schema(options: Mapping[str, str]) -> StructType:
    """The schema of a table that is being made. Raises InvalidArgument for an unknown option."""
    # Each option comes twice, once by this name; what else is there is the table's owner, and its properties.
    own = {name.removeprefix(_OPTION): value for name, value in options.items() if name.startswith(_OPTION)}
    found = checked(own, table_reader.OPTIONS, "a table")
    table_reader.schema(found)
    columns = table_reader.columns_asked(found)
    made = from_arrow_schema(schemas.schema(choice(found, "table", "jobs"), columns))
    made.fields[0].metadata = {_METADATA: json.dumps(found)}
    return made


def with_kept(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read, with those that its table was made with."""
    kept = [field.metadata[_METADATA] for field in schema.fields if field.metadata and _METADATA in field.metadata]
    return {**json.loads(kept[0]), **options} if kept else dict(options)
