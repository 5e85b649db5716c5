"""What PySpark looks for: modules called `pyspark_*` with a `DefaultSource` are data sources it knows by itself."""

from leasehold.spark.datasource import LeaseholdSource


class DefaultSource(LeaseholdSource):
    pass


__all__ = ["DefaultSource"]
