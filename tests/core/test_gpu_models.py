"""Test that a node's GPUs are compared with the model of its SKU, by their product name.

The model comes from the SKU's name, or from bench_sku_gpu_name. A GPU on an SXM board (H200) and the card of
the same model (H200 NVL) are different products. core/gpu_models.py has their limits. A node with another
model, or with an unknown one, is unproven in benchmarks and nights.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rackproof.core.gpu_models import (
    expected_model,
    has_own_links,
    is_model,
    least_link_gb_s,
    physics_of,
)
from rackproof.core.records import Gpu
from rackproof.nodes.facts import sku_findings
from rackproof.nodes.health_checks import check_sku
from rackproof.nodes.health_subjects import Expectation
from rackproof.nodes.snapshot import GpuSnapshot, NodeSnapshot
from rackproof.store.history.references import physical_objection


# `given` is bench_sku_gpu_name. A number of GPUs or nodes (x8, 8x) may be a part of the SKU's name, and two
# models, or none, give "".
@pytest.mark.parametrize(
    ("sku", "given", "model"),
    [
        ("h200", "", "H200"),
        ("hgx-h200-x8", "", "H200"),
        ("GB300", "", "GB300"),
        ("dgx1", "", "V100"),
        ("gh200", "", "GH200"),
        ("h200", "H200 NVL", "H200 NVL"),
        ("h200-nvl", "", "H200 NVL"),
        ("h200nvl", "", "H200 NVL"),
        ("h200_nvl_x4", "", "H200 NVL"),
        ("H100-PCIe", "", "H100 PCIe"),
        ("8xh100-pcie", "", "H100 PCIe"),
        ("a100-pcie-40gb", "", "A100 PCIe"),
        ("gb300-nvl72", "", "GB300"),
        ("l40s-pcie", "", "L40S"),
        ("h100-nvl-pcie", "", ""),
        ("h200x8", "", "H200"),
        ("8xh100", "", "H100"),
        ("hgx-4xGB300x18", "", "GB300"),
        ("h200x", "", ""),
        ("xh200", "", ""),
        ("h2000", "", ""),
        ("gh200x1", "", "GH200"),
        ("rack-a", "", ""),
        ("blue", "", ""),
        ("h100-and-h200", "", ""),
        ("", "", ""),
    ],
)
def test_a_sku_has_the_model_of_its_name_or_variable(sku: str, given: str, model: str) -> None:
    assert expected_model(sku, given) == model


@pytest.mark.parametrize(
    ("name", "model", "same"),
    [
        ("NVIDIA H200", "H200", True),
        ("Tesla V100-SXM2-16GB", "V100", True),
        ("NVIDIA H100 80GB HBM3", "H100", True),
        ("NVIDIA H200 NVL", "H200 NVL", True),
        ("NVIDIA GH200 480GB", "H200", False),
        ("NVIDIA H20", "H200", False),
        ("NVIDIA H200", "H20", False),
        ("NVIDIA A100-SXM4-80GB", "A10", False),
        ("NVIDIA GB200", "B200", False),
        ("", "H200", False),
    ],
)
def test_a_model_is_a_word_of_the_product_name(name: str, model: str, same: bool) -> None:
    assert is_model(name, model) is same


# `speed` is the least GB/s of one NVLink in one direction (14 if the model is unknown). `own` is whether the
# product has NVLinks without a bridge between cards.
@pytest.mark.parametrize(
    ("name", "speed", "own"),
    [
        ("NVIDIA H200", 25, True),
        ("NVIDIA H200 NVL", 25, False),
        ("NVIDIA GB300", 50, True),
        ("NVIDIA B200", 50, True),
        ("Tesla V100-SXM2-16GB", 25, True),
        ("NVIDIA L40S", 14, False),
        ("NVIDIA GeForce RTX 3090", 14, None),
        ("", 14, None),
    ],
)
def test_the_product_name_gives_the_nvlinks(name: str, speed: float, own: bool | None) -> None:
    assert (least_link_gb_s(name), has_own_links(name)) == (speed, own)


def test_the_product_name_gives_the_peaks() -> None:
    h100, v100 = physics_of("NVIDIA H100 80GB HBM3"), physics_of("Tesla V100-SXM2-16GB")
    assert h100 is not None
    assert h100.memory == 3.35
    assert v100 is not None
    assert v100.memory == 0.9
    assert physics_of("NVIDIA GeForce RTX 4090") is None


# `memory` is the data sheet's peak bandwidth in TB/s.
@pytest.mark.parametrize(
    ("product", "memory"),
    [
        ("NVIDIA H100 NVL", 3.94),
        ("NVIDIA H100 PCIe", 2.04),
        ("NVIDIA H200 NVL", 4.8),
        ("H100 NVL Tensor Core GPU", 3.94),
        ("NVIDIA H100 80GB HBM3", 3.35),
        ("NVIDIA H200", 4.8),
    ],
)
def test_a_card_has_other_peaks_than_the_module(product: str, memory: float) -> None:
    physics = physics_of(product)
    assert physics is not None
    assert physics.memory == memory


# `speed` is a measured memory bandwidth in TB/s. A sound machine reaches less than the peak, and not much
# less.
@pytest.mark.parametrize(
    ("product", "speed", "believed"),
    [
        ("NVIDIA H100 NVL", 3.6, True),
        ("NVIDIA H100 NVL", 4.0, False),
        ("NVIDIA H100 PCIe", 1.8, True),
        ("NVIDIA H100 PCIe", 2.5, False),
        ("NVIDIA H100 80GB HBM3", 3.6, False),
        ("NVIDIA H200 NVL", 4.3, True),
    ],
)
def test_a_card_may_be_as_fast_as_its_own_data_sheet(product: str, speed: float, believed: bool) -> None:
    assert (physical_objection("memory_copy", {}, "TB/s", speed, product) == "") is believed


# SKU, products of its GPUs, bench_sku_gpu_name, and the code of the finding (None: the model is right).
@pytest.mark.parametrize(
    ("sku", "names", "given", "code"),
    [
        ("h200", ["NVIDIA H200"] * 4, "", None),
        ("h200", ["NVIDIA H200 NVL"], "", "sku_differs"),
        ("h200-nvl", ["NVIDIA H200 NVL"] * 4, "", None),
        ("h200-nvl", ["NVIDIA H200"], "", "sku_differs"),
        ("h100", ["NVIDIA H100 PCIe"], "", "sku_differs"),
        ("h100", ["NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL"], "", "sku_differs"),
        ("h100-pcie", ["NVIDIA H100 PCIe"], "", None),
        ("h100-pcie", ["NVIDIA H100 NVL"], "", "sku_differs"),
        ("a100-pcie", ["NVIDIA A100-PCIE-40GB"], "", None),
        ("a100-pcie", ["NVIDIA A100 80GB PCIe"], "", None),
        ("a100", ["NVIDIA A100-SXM4-80GB"], "", None),
        ("a100", ["NVIDIA A100-PCIE-40GB"], "", "sku_differs"),
        ("custom", ["NVIDIA H200 NVL"], "H200", "sku_differs"),
        ("custom", ["NVIDIA H200 NVL"], "H200 NVL", None),
        ("gb300-nvl72", ["NVIDIA GB300"], "", None),
        ("b300", ["NVIDIA B300 SXM6 AC"], "", None),
        ("dgx1", ["Tesla V100-SXM2-16GB"], "", None),
        ("dgx1", ["Tesla V100-PCIE-16GB"], "", "sku_differs"),
        ("custom", ["NVIDIA L40S"], "L40S", None),
        ("h200", ["NVIDIA A10"] * 4, "", "sku_differs"),
        ("h200", ["NVIDIA GH200 480GB"], "", "sku_differs"),
        ("h100", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"], "", "sku_differs"),
        ("b200", ["NVIDIA GB200"], "", "sku_differs"),
        ("h200", ["NVIDIA H200", ""], "", "sku_differs"),
        ("custom", ["NVIDIA L40"], "L40S", "sku_differs"),
    ],
)
def test_gpus_of_another_model_are_unproven(sku: str, names: list[str], given: str, code: str | None) -> None:
    gpus = [Gpu(index=number, uuid=f"GPU-{number}", name=name) for number, name in enumerate(names)]
    found = sku_findings("n1", gpus, sku=sku, gpu_name=given, expected_gpus=len(gpus))
    assert [(one.code, one.verdict) for one in found] == ([(code, "unproven")] if code else [])
    snapshot = NodeSnapshot(
        node="n1",
        hardware_key="S1",
        sku=sku,
        gpus=tuple(GpuSnapshot(uuid=gpu.uuid, name=gpu.name) for gpu in gpus),
    )
    nightly = check_sku(snapshot, Expectation(gpus=len(gpus), gpu_name=given))
    assert [(one.code, one.verdict) for one in nightly] == ([(code, "unproven")] if code else [])


@pytest.mark.parametrize("sku", ["rack-a", "blue", "gpu-node", "h2o"])
@pytest.mark.parametrize("product", ["NVIDIA A10", "NVIDIA H200"])
def test_a_sku_whose_model_is_not_known_is_unproven(sku: str, product: str) -> None:
    gpus = [Gpu(index=at, uuid=f"GPU-{at}", name=product) for at in range(4)]
    (found,) = sku_findings("n1", gpus, sku=sku, expected_gpus=4)
    assert (found.code, found.verdict) == ("sku_model_unknown", "unproven")
    assert "bench_sku_gpu_name" in found.message
    snapshot = NodeSnapshot(
        node="n1",
        hardware_key="S1",
        sku=sku,
        gpus=tuple(GpuSnapshot(uuid=gpu.uuid, name=gpu.name) for gpu in gpus),
    )
    (nightly,) = check_sku(snapshot, Expectation(gpus=4))
    assert (nightly.code, nightly.verdict) == ("sku_model_unknown", "unproven")
    model = product.removeprefix("NVIDIA ")
    assert sku_findings("n1", gpus, sku=sku, gpu_name=model, expected_gpus=4) == ()
    assert list(check_sku(snapshot, Expectation(gpus=4, gpu_name=model))) == []
    assert sku_findings("n1", [], sku="") == ()


def test_the_name_of_every_shipped_sku_states_its_gpu() -> None:
    files = sorted((Path(__file__).parents[2] / "inventory/group_vars").glob("sku_*.yml"))
    assert len(files) >= 10
    for path in files:
        variables = yaml.safe_load(path.read_text())
        # The model follows from the name, because a host with another SKU must not inherit the group's model.
        assert "bench_sku_gpu_name" not in variables, path
        assert expected_model(variables["bench_sku"]), path


@pytest.mark.parametrize("sku", ["h200", "gb300", "dgx1"])
def test_a_sku_without_a_number_of_gpus_is_unproven(sku: str) -> None:
    (found,) = sku_findings("n1", [], sku=sku)
    assert (found.code, found.verdict) == ("sku_gpus_unknown", "unproven")
    (nightly,) = check_sku(NodeSnapshot(node="n1", hardware_key="S1", sku=sku), Expectation())
    assert (nightly.code, nightly.verdict) == ("sku_gpus_unknown", "unproven")


def test_no_node_of_a_skeleton_passes() -> None:
    snapshot = NodeSnapshot(node="n1", hardware_key="S1", sku="a100-x4")
    (found,) = check_sku(snapshot, Expectation(gpus=4, skeleton=True))
    assert (found.code, found.verdict) == ("sku_skeleton", "unproven")
    assert not list(check_sku(snapshot, Expectation(gpus=4)))


def test_more_gpus_than_the_sku_has_are_unproven_in_benchmarks_and_nights() -> None:
    gpus = tuple(Gpu(index=at, uuid=f"GPU-{at}", name="NVIDIA H200") for at in range(8))
    (found,) = sku_findings("n1", gpus, sku="h200-x1", expected_gpus=1)
    assert (found.code, found.verdict) == ("sku_gpus_exceeded", "unproven")
    assert "n1: has 8 GPUs, SKU h200-x1 has 1" in found.message
    assert sku_findings("n1", gpus, sku="h200", expected_gpus=8) == ()
    # Too few GPUs give another finding.
    assert sku_findings("n1", gpus[:4], sku="h200", expected_gpus=8) == ()
    snapshot = NodeSnapshot(
        node="n1",
        hardware_key="S1",
        sku="h200-x1",
        gpus=tuple(GpuSnapshot(uuid=gpu.uuid, name=gpu.name) for gpu in gpus),
    )
    (nightly,) = check_sku(snapshot, Expectation(gpus=1))
    assert (nightly.code, nightly.verdict) == ("sku_gpus_exceeded", "unproven")
    assert list(check_sku(snapshot, Expectation(gpus=8))) == []
