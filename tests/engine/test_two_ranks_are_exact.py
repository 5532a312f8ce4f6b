"""Promise: at two ranks sharded has the bits of off without paying an all-reduce: a sum of two terms has one order."""

import pytest
from agreement import assert_entered, assert_same, results
from chunks import chunks


@pytest.mark.parametrize("name", chunks(2))
def test_sharded_equals_off(name):
    by_rank = results(2, *chunks(2)[name])
    assert_entered(by_rank, "sharded")
    assert_same(by_rank, "sharded", "off")


def test_no_all_reduce_of_a_whole_chunk():
    spec, batch = chunks(2)["264+1 rows"]
    for result in results(2, spec, batch):
        embedding, *others = [rows for operation, rows, _ in result["sharded"][2] if operation == "all_reduce"]
        assert embedding == batch.rows
        assert all(rows == spec.tail_rows for rows in others), "only the late layers all-reduce"
