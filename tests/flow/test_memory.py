"""Memory: chunks shrink when they must, and the bits stay the same."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.errors import OutOfMemoryError
from cswf_core.flow import memory
from cswf_plugins.cdfs.sorted import Sorted
from tests.conftest import small_flow


@attrs.frozen
class Hungry(Sorted):
    """Runs out of memory when it gets more than `most` directions at once."""

    most: int = 4

    def transport(self, p, q):
        if p.shape[0] > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().transport(p, q)


def test_out_of_memory_halves_the_chunk_and_changes_no_bit(caplog):
    flow = small_flow(cdf=Hungry(most=4))
    digest = flow.run().digest()
    assert flow._chunks.rows == 4
    assert "going on with 4 directions at a time" in caplog.text
    assert digest == small_flow().run().digest()


@pytest.mark.parametrize("rows", [1, 3, 128])
def test_chunk_sizes_change_no_bit(rows):
    flow = small_flow(dtype=torch.float32)
    flow._chunks.rows = rows
    assert flow.run().digest() == small_flow(dtype=torch.float32).run().digest()


def test_a_chunk_of_one_that_does_not_fit_fails_with_one_sentence():
    with pytest.raises(
        OutOfMemoryError, match="one direction of 30 particles and 40 data does not fit"
    ) as error:
        small_flow(cdf=Hungry(most=0)).run()
    assert "\n" not in str(error.value)


def test_running_out_of_memory_elsewhere_is_one_sentence_too(monkeypatch):
    def full(*arguments):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    monkeypatch.setattr("cswf_core.flow.flow.velocity", full)
    with pytest.raises(OutOfMemoryError, match="30 particles and 40 data in 5 dimensions do not fit"):
        small_flow().run()


def test_the_chunk_follows_from_the_memory_of_the_device(monkeypatch):
    device = torch.device("cpu")
    monkeypatch.setattr(memory, "total_memory", lambda device: 8 * memory.TEMPORARIES * 4 * 1000 * 10)
    assert memory.Chunks(device, 1000, 4).rows == 10
    assert memory.Chunks(device, 10**9, 4).rows == 1
    assert memory.Chunks(device, 1, 4).rows == memory.TILE


def test_an_error_that_is_not_about_memory_is_not_swallowed():
    @attrs.frozen
    class Wrong(Sorted):
        def transport(self, p, q):
            raise RuntimeError("memory of an elephant")

    with pytest.raises(Exception, match="memory of an elephant"):
        small_flow(cdf=Wrong()).run()


def test_tiles_cover_all_directions_once():
    for directions in (1, 127, 128, 129, 1000):
        assert sum(count for _, count in memory.tiles(directions)) == directions
