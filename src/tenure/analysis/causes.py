r"""What jobs fail of: errors brought down to a class, so that a thousand time-outs are one cause.

The class is what stands before the first colon and space, or line end, with everything that varies from one job to the
next (numbers, hex, quoted text, addresses) replaced: "MailboxFull: ada@example.org" and "MailboxFull: bob@…" are
`MailboxFull`; "lease 01a3… lost after 31 s" is `lease # lost after # s`.

Quotes are written \x27, \x22 and \x60 in patterns: a quote in a SQL text is not the same to Spark and to DuckDB.
"""

from __future__ import annotations

TOP = 50
OTHER = "(other)"
NONE = "(no error given)"
_LENGTH = 80

_VARYING = (
    (r"^(the lease expired) \(worker .*\)$", "$1"),  # our own words, with a name in them
    (r"\x27[^\x27]*\x27|\x22[^\x22]*\x22|\x60[^\x60]*\x60", "…"),
    (r"\S+@\S+|\w+://\S+|(/[\w.-]+){{2,}}", "…"),
    (r"…{{2,}}", "…"),  # two of the above side by side
    (r"\b[0-9a-fA-F]{{8,}}(-[0-9a-fA-F]{{4,}})*\b|\b0x[0-9a-fA-F]+\b", "#"),
    (r"\d+([.,:]\d+)*", "#"),
    (r"\s+", " "),
)


def cause(error: str) -> str:
    """The class of an error, as SQL; the braces of patterns are doubled, as statements have them."""
    first = f"trim(regexp_extract({error}, r'^[^\\r\\n]*', 0))"
    # A traceback's last line is the error, and its first says nothing.
    last = f"trim(regexp_extract({error}, r'([^\\r\\n]+)\\s*$', 1))"
    said = f"CASE WHEN {first} LIKE 'Traceback (most recent%' THEN {last} ELSE {first} END"
    head = f"trim(regexp_extract({said}, r'^(.{{{{1,200}}}}?)(:\\s|:?$)', 1))"
    text = f"coalesce(nullif({head}, ''), {said})"
    for pattern, put in _VARYING:
        text = f"regexp_replace({text}, r'{pattern}', '{put}')"
    return f"coalesce(nullif(trim(substring({text}, 1, {_LENGTH})), ''), '{NONE}')"


def top(table: str, weight: str, most: int = TOP) -> str:
    """The causes of a table (`cause`, `died`, `retried`) with the greatest weight, and all others as one."""
    return f"""
WITH ranked AS (SELECT *, row_number() OVER (ORDER BY {weight} DESC, cause) AS place FROM {table})
SELECT CASE WHEN place <= {most} THEN cause ELSE '{OTHER}' END AS cause, CAST(sum(died) AS BIGINT) AS died,
  CAST(sum(retried) AS BIGINT) AS retried
FROM ranked GROUP BY CASE WHEN place <= {most} THEN cause ELSE '{OTHER}' END"""
