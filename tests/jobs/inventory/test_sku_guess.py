"""Test ``rackproof.jobs.inventory.sku_guess``, which guesses the SKU (model) of a node for an inventory.

``rackproof adopt`` has only texts about a node, such as Slurm's GPU type or the instance type of a cloud, and
perhaps the number of GPUs. The tests check which shipped SKU a text names, that other nodes get a SKU of
their own without bounds, and that each doubt is reported.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rackproof.jobs.inventory.nodes import AdoptedNode, AdoptError, GpuHint
from rackproof.jobs.inventory.sku_guess import (
    SkuGuess,
    guess_sku,
    model_of_text,
    read_shipped_skus,
    read_sku_rules,
)

SHIPPED = read_shipped_skus(Path(__file__).parents[3])


def guess(count: int | None, *texts: str, sku: str = "", rules: tuple[str, ...] = ()) -> SkuGuess:
    """Return the guess for a node with this number of GPUs (None if unknown) and these texts."""
    hints = tuple(GpuHint(where=f"text {at}", text=text) for at, text in enumerate(texts))
    node = AdoptedNode(name="n1", source="test", gpu_count=count, gpu_count_from="Gres", hints=hints, sku=sku)
    return guess_sku(node, SHIPPED, read_sku_rules(rules))


@pytest.mark.parametrize(
    ("count", "text", "group"),
    [
        (8, "h100", "sku_h100"),
        (8, "nvidia_h100_80gb_hbm3", "sku_h100"),
        (2, "h100", "sku_h100_x2"),
        (1, "H200", "sku_h200_x1"),
        (4, "gb300", "sku_gb300"),
        (None, "DGX-1", "sku_dgx1"),
        (None, "DGX H100", "sku_h100"),
        (None, "p5.48xlarge", "sku_h100"),
        (None, "a4-highgpu-8g", "sku_b200"),
        (None, "gpu_8x_h100_sxm5", "sku_h100"),
        (None, "Standard_ND96isr_H100_v5", "sku_h100"),
        (None, "BM.GPU.H100.8", "sku_h100"),
        (None, "8x NVIDIA H200 141GB", "sku_h200"),
        (None, "GB300 NVL72", "sku_gb300"),
        (None, "8*H100", "sku_h100"),
        (None, "8 \u00d7 H100", "sku_h100"),
        (None, "8 x NVIDIA H100 80GB HBM3", "sku_h100"),
    ],
)
def test_a_shipped_sku_is_recognised(count: int | None, text: str, group: str) -> None:
    found = guess(count, text)
    assert (found.group, found.shipped) == (group, True)
    assert text in found.why


@pytest.mark.parametrize(
    ("count", "text", "group", "unsure"),
    [
        (4, "a100", "sku_a100_x4", ""),
        (8, "H100 PCIe", "sku_h100_pcie_x8", ""),
        (8, "v100", "sku_v100_x8", "dgx1 or hyperplane"),
        (8, "tesla", "sku_tesla_x8", "its GPU model is not known"),
        (None, "h100", "sku_h100_unknown", "its number of GPUs"),
        (0, "h100", "sku_h100_unknown", "its number of GPUs"),
        (14, "1g.10gb", "sku_1g_10gb_unknown", "divided (MIG)"),
        (8, "h100 a100", "sku_h100_a100_x8", "its GPU model is not known"),
        (None, "PowerEdge XE9680", "sku_poweredge_xe9680_unknown", "its GPU model is not known"),
        (8, "{{ lookup('pipe', 'id') }}", "sku_lookup_pipe_id_x8", "its GPU model is not known"),
        (None, "x86 server", "sku_x86_server_unknown", "its number of GPUs"),
    ],
)
def test_a_sku_that_is_not_shipped_gets_a_name_of_its_own(
    count: int | None, text: str, group: str, unsure: str
) -> None:
    found = guess(count, text)
    assert (found.group, found.shipped) == (group, False)
    assert unsure in " ".join(found.unsure)


def test_each_doubt_is_reported() -> None:
    assert "taken for the module" in guess(8, "h100").unsure[0]
    assert not guess(8, "h100-sxm5").unsure
    assert "part of a machine" in " ".join(guess(4, "h100").unsure)
    assert "names H200" in " ".join(guess(8, "h100", "h200").unsure)
    # Slurm's Gres has no GPUs, but another text names some.
    assert "Gres has no GPU, text 0 names H100" in " ".join(guess(0, "DGX H100").unsure)
    assert "names 8 GPUs" in " ".join(guess(4, "DGX H100").unsure)


def test_the_more_precise_of_two_texts_decides() -> None:
    assert guess(8, "h100", "H100 PCIe").group == "sku_h100_pcie_x8"
    assert guess(8, "v100", "DGX-1").group == "sku_dgx1"


def test_no_gpus_and_an_unknown_number_of_gpus_are_different() -> None:
    assert guess(0).group == ""
    assert guess(None).group == "sku_unknown"
    assert guess(8).group == "sku_unknown_x8"


def test_a_person_may_name_the_sku() -> None:
    assert guess(8, "tesla", rules=("tesla=h100",)).group == "sku_h100"
    assert guess(8, "PowerEdge XE9680", rules=("poweredge*=sku_h200",)).group == "sku_h200"
    assert guess(8, "h100", rules=("n*=h200",)).group == "sku_h200"
    assert guess(4, sku="h100").unsure
    own = guess(8, sku="MI300X")
    assert (own.group, own.shipped) == ("sku_mi300x", False)


@pytest.mark.parametrize("rule", ["h100", "=h100", "n*=", "n*={{ x }}", "n*=a b"])
def test_a_rule_of_another_form_is_refused(rule: str) -> None:
    with pytest.raises(AdoptError, match="PATTERN=SKU"):
        read_sku_rules([rule])


def test_a_folder_without_skus_is_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(AdoptError, match="--checkout"):
        read_shipped_skus(tmp_path)


@pytest.mark.parametrize(
    "text", ["rack_a10", "bldg-l4", "row l40", "cab:a30", "switch-t4", "ROOM_B2 rack_h20"]
)
def test_a_place_is_not_a_gpu_model(text: str) -> None:
    assert model_of_text(text) == ""
    assert guess(0, text).group == ""
    assert guess(8, "h100", text).group == "sku_h100"


@pytest.mark.parametrize("text", ["A10", "gpu_a10", "rack-h100", "tesla-t4", "1x A10", "nvidia-l4"])
def test_a_model_is_not_a_place(text: str) -> None:
    assert model_of_text(text)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("nvidiah100pcie", "H100 PCIe"),
        ("NVIDIAA100-SXM4-80GB", "A100"),
        ("teslav100", "V100"),
        ("h100sxm5", "H100"),
        ("a100sxm4", "A100"),
        ("h100mig", "H100"),
        ("hgxh200", "H200"),
        ("dgxb200", "B200"),
        ("h100nvl", "H100 NVL"),
        ("nvidia_geforce_rtx_4090", ""),
    ],
)
def test_a_type_without_separators_is_read(text: str, model: str) -> None:
    assert model_of_text(text) == model
