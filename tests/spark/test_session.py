from __future__ import annotations


def test_the_session_writes_and_reads_delta(spark, tmp_path):
    spark.range(3).write.format("delta").save(str(tmp_path / "t"))
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == 3
