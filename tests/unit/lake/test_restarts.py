from wal2lake.lake.spark.jvm import as_properties
from wal2lake.lake.spark.restarts import LASTING_SECONDS, MOST_IN_A_ROW, Restarts


def test_spark_is_started_again_later_each_time_and_not_for_ever() -> None:
    restarts = Restarts()
    waits = [restarts.ended(lived=3.0) for _ in range(MOST_IN_A_ROW)]
    assert None not in waits
    assert waits == sorted(waits, key=lambda wait: wait or 0.0)
    assert restarts.ended(lived=3.0) is None


def test_a_jvm_that_has_lived_for_long_ends_the_row() -> None:
    restarts = Restarts()
    first = restarts.ended(lived=3.0)
    for _ in range(3):
        restarts.ended(lived=3.0)
    assert restarts.ended(lived=LASTING_SECONDS) == first


def test_settings_are_escaped_for_a_properties_file() -> None:
    text = as_properties({"spark.a": "C:\\x=1\n#2", "spark.b c": " padded"})
    assert text == "spark.a=C:\\\\x=1\\n#2\nspark.b\\ c=\\ padded\n"
