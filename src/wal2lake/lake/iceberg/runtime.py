"""What Iceberg needs of a Spark driver."""

from __future__ import annotations

from ..format import Jar, Runtime

ICEBERG = Jar("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.11.0")
SQLITE = Jar("org.xerial", "sqlite-jdbc", "3.53.4.0")
"""for the default catalog"""

RUNTIME = Runtime(
    jars={"org.apache.iceberg.spark.SparkCatalog": ICEBERG, "org.sqlite.JDBC": SQLITE},
    extensions=("org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",),
    # Its vectorised reader leaks some direct memory in each MERGE into a table with deletions.
    settings={"spark.sql.iceberg.vectorization.enabled": "false"},
    packages=("org.apache.iceberg",),
)
