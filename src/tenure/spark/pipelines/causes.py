"""What jobs fail of: errors brought down to a class, so that a thousand time-outs are one cause.

The class is what stands before the first colon and space, or line end, with everything that varies from one job to the next
(numbers, hex, quoted text, addresses) replaced: "MailboxFull: ada@example.org" and "MailboxFull: bob@…" are
`MailboxFull`; "lease 01a3… lost after 31 s" is `lease # lost after # s`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

TOP = 50
OTHER = "(other)"
NONE = "(no error given)"
_LENGTH = 80

_VARYING = (
    (r"^(the lease expired) \\(worker .*\\)$", "$1"),  # our own words, with a name in them
    (r"""'[^']*'|"[^"]*"|`[^`]*`""", "…"),
    (r"\\S+@\\S+|\\w+://\\S+|(/[\\w.-]+){2,}", "…"),
    (r"…{2,}", "…"),  # two of the above side by side
    (r"\\b[0-9a-fA-F]{8,}(-[0-9a-fA-F]{4,})*\\b|\\b0x[0-9a-fA-F]+\\b", "#"),
    (r"\\d+([.,:]\\d+)*", "#"),
    (r"\\s+", " "),
)


def cause(error: Column) -> Column:
    """The class of an error."""
    said = F.trim(F.split(error, r"[\r\n]", 2)[0])
    # A traceback's last line is the error, and its first says nothing.
    said = F.when(
        said.startswith("Traceback (most recent"), F.trim(F.element_at(F.split(F.rtrim(error), r"[\r\n]+"), -1))
    ).otherwise(said)
    head = F.trim(F.regexp_extract(said, r"^(.{1,200}?)(:\s|:?$)", 1))
    text = F.when(F.length(head) > 0, head).otherwise(said)
    for pattern, put in _VARYING:
        text = F.regexp_replace(text, pattern.replace("\\\\", "\\"), put)
    text = F.trim(F.substring(text, 1, _LENGTH))
    return F.when(text.isNull() | (text == ""), NONE).otherwise(text)


def top_causes(counted: DataFrame, by: list[str], weight: str, top: int = TOP) -> DataFrame:
    """The causes with the greatest `weight` in each group of `by`, and all others as one."""
    names = [column for column in counted.columns if column not in (*by, "cause")]
    ranked = counted.withColumn(
        "rank", F.row_number().over(Window.partitionBy(*by).orderBy(F.desc(weight), F.asc("cause")))
    )
    kept = ranked.withColumn("cause", F.when(F.col("rank") <= top, F.col("cause")).otherwise(OTHER))
    return kept.groupBy(*by, "cause").agg(*[F.sum(name).alias(name) for name in names])
