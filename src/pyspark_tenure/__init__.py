"""What PySpark looks for: modules called `pyspark_*` with a `DefaultSource` are data sources it knows by itself."""

from tenure.spark.datasource import TenureSource


class DefaultSource(TenureSource):
    pass


__all__ = ["DefaultSource"]
