"""Test ``rackproof.jobs.reimage.hardware``, which compares a node's hardware before and after a new image.

A change is reported with its values. A lost GPU, less memory, another serial number, and GPUs or memory that
are not known after the image, stop the node. A swapped or moved GPU and other firmware are only remarks.
"""

from __future__ import annotations

import pytest

from rackproof.core.records import Gpu, Node, Verdict
from rackproof.jobs.reimage.hardware import compare_hardware


def gpus(*names: str, vbios: str = "1") -> tuple[Gpu, ...]:
    """Return a GPU for each name, with the UUID ``GPU-NAME``, in slots 00:00, 00:01, …"""
    return tuple(
        Gpu(index=i, uuid=f"GPU-{name}", bus_id=f"00:0{i}", vbios=vbios) for i, name in enumerate(names)
    )


NODE = Node(
    name="n1",
    serial="S1",
    memory_bytes=960 << 30,
    gpus=gpus("a", "b", "c", "d"),
    firmware={"bios": "1.0", "infiniband.mlx5_0": "28.1", "vbios": "1"},
)


def described(after: Node, before: Node | None = NODE) -> list[tuple[str, Verdict | None]]:
    """Return the text and verdict of each change. The verdict of a remark is None."""
    return [(one.text(), one.verdict) for one in compare_hardware(before, after)]


def test_equal_hardware_is_no_change_even_if_the_kernel_reserves_a_little_memory() -> None:
    assert described(NODE) == []
    assert described(NODE.model_copy(update={"memory_bytes": (960 << 30) - (8 << 30)})) == []


def test_a_swapped_gpu_is_reported_with_both_uuids_and_does_not_stop_the_node() -> None:
    after = NODE.model_copy(update={"gpus": gpus("a", "x", "c", "d")})
    assert described(after) == [("GPU 1 (00:01) swapped: was GPU-b, is GPU-x", None)]


def test_two_gpus_that_changed_slots_are_reported_as_moved() -> None:
    after = NODE.model_copy(update={"gpus": gpus("b", "a", "c", "d")})
    assert [text for text, _ in described(after)] == [
        "GPU GPU-a moved: 00:00 to 00:01",
        "GPU GPU-b moved: 00:01 to 00:00",
    ]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"gpus": gpus("a", "b", "c")}, "GPU 3 (00:03) missing: was GPU-d"),
        ({"gpus": ()}, "GPUs: not known after, so not compared"),
        ({"memory_bytes": 0}, "memory: not known after, so not compared"),
        ({"memory_bytes": 896 << 30}, "memory was 960 GiB, is 896 GiB"),
        ({"serial": "S2"}, "serial number was S1, is S2"),
    ],
)
def test_lost_hardware_and_another_machine_stop_the_node(after: dict[str, object], expected: str) -> None:
    assert [
        text for text, verdict in described(NODE.model_copy(update=after)) if verdict and verdict.gates
    ] == [expected]


def test_each_change_of_firmware_is_reported() -> None:
    after = NODE.model_copy(
        update={"gpus": gpus("a", "b", "c", "d", vbios="2"), "firmware": {"bios": "1.1", "vbios": "2"}}
    )
    assert [text for text, _ in described(after)] == [
        *(f"GPU {i} (00:0{i}) firmware was 1, is 2" for i in range(4)),
        "firmware bios was 1.0, is 1.1",
        "firmware infiniband.mlx5_0 missing: was 28.1",
    ]


def test_hardware_that_was_not_known_before_is_reported_as_not_compared() -> None:
    assert described(NODE, None) == [("hardware: not known before, so not compared", None)]
    bare = NODE.model_copy(update={"gpus": (), "serial": ""})
    assert [text for text, _ in described(NODE, bare)] == [
        "serial number: not known before, so not compared",
        "GPUs: not known before, so not compared",
    ]


def test_memory_that_was_not_known_before_is_only_reported() -> None:
    bare = NODE.model_copy(update={"memory_bytes": 0})
    assert described(NODE, bare) == [("memory: not known before, so not compared", None)]
    assert described(bare, bare) == []


# GPUs with equal or unknown bus ids or UUIDs. `after` has the positions of the GPUs that remain.
@pytest.mark.parametrize(
    ("bus_ids", "uuids", "after"),
    [
        (("00:01", "00:01"), ("a", "b"), (0,)),
        (("00:01", "00:01"), ("a", "b"), (1,)),
        (("", ""), ("a", "b"), (0,)),
        (("", ""), ("", ""), (1,)),
        (("00:01", "00:02"), ("a", "a"), (0,)),
        (("00:01", "00:01", "00:01"), ("a", "b", "c"), (0, 2)),
    ],
)
def test_a_lost_gpu_is_missing_even_if_gpus_have_equal_or_no_bus_ids_or_uuids(
    bus_ids: tuple[str, ...], uuids: tuple[str, ...], after: tuple[int, ...]
) -> None:
    gpus_before = [
        Gpu(index=0, uuid=uuid, bus_id=bus_id) for uuid, bus_id in zip(uuids, bus_ids, strict=True)
    ]
    before = NODE.model_copy(update={"gpus": tuple(gpus_before)})
    assert described(before, before) == []
    changes = described(
        NODE.model_copy(update={"gpus": tuple(gpus_before[number] for number in after)}), before
    )
    assert [verdict for _, verdict in changes] == [Verdict.FAIL]
    assert " missing: was " in changes[0][0]


def test_a_new_gpu_in_the_place_of_one_that_moved_is_new() -> None:
    after = (*gpus("x", "b", "c", "d"), Gpu(index=4, uuid="GPU-a", bus_id="00:04", vbios="1"))
    assert described(NODE.model_copy(update={"gpus": after})) == [
        ("GPU GPU-a moved: 00:00 to 00:04", None),
        ("GPU 0 (00:00) new: GPU-x", None),
    ]


@pytest.mark.parametrize(("was", "now"), [("abc1", "ABC1"), ("ABC1", "abc1 "), ("S1", "S1")])
def test_serial_numbers_are_compared_without_case_and_spaces_at_the_end(was: str, now: str) -> None:
    before, after = (NODE.model_copy(update={"serial": serial}) for serial in (was, now))
    assert described(after, before) == []
