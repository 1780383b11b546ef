"""A group of one, and a group of two processes, each of which runs this file."""

import json
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from dnformer.group import Group


@pytest.mark.parametrize("data", [None, b"", b"abc"], ids=["none", "empty", "some"])
def test_broadcast_in_a_group_of_one(data):
    assert Group().broadcast(data) == data


def test_sum_in_a_group_of_one():
    assert torch.equal(Group().sum_(torch.ones(2)), torch.ones(2))


def test_group_of_two_sums_and_broadcasts(tmp_path):
    address = f"file://{tmp_path}/meet"
    members = [
        subprocess.Popen([sys.executable, __file__, str(rank), address], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    found = [json.loads(member.communicate(timeout=120)[0]) for member in members]
    assert found == [{"sum": 3.0, "sent": [None, "", "abc"]}] * 2


def member(rank: int, address: str) -> None:
    """One process of the group: prints what it got."""
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    group = Group(rank, 2)
    total = group.sum_(torch.tensor([1.0 + rank])).item()
    sent = [group.broadcast(data if rank == 0 else None) for data in (None, b"", b"abc")]
    texts = [None if data is None else data.decode() for data in sent]
    print(json.dumps({"sum": total, "sent": texts}))
    dist.destroy_process_group()


if __name__ == "__main__":
    member(int(sys.argv[1]), sys.argv[2])
