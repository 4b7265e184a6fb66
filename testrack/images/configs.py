"""Make the texts of the files config_*.sh in the fake images of the test rack.

build.py calls :func:`files`. The files have the names and exports of NVIDIA's published configs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """The values of one config_*.sh, which sets the system, the nodes, the GPUs and the batch of a training.

    ``cp`` and ``tp`` are the context-parallel and the tensor-parallel size.
    """

    system: str
    nodes: int
    gpus: int
    batch: int
    """For a language model, the batch of a data-parallel group (MINIBS). For flux1, the batch of a GPU (MBS).
    flux1's BATCHSIZE is the batch of all GPUs."""
    cp: int = 1
    tp: int = 1
    precision: str = ""
    """The end of the file's name. It is "_fp4", "_big" (a batch larger than at any reference convergence
    point), or ""."""

    def llm_name(self, suffix: str) -> str:
        """Return the name of the file in the image of a language model."""
        spread = f"{self.nodes}x{self.gpus}x{self.batch}xtp{self.tp}pp1cp{self.cp}"
        return f"config_{self.system}_{spread}{suffix}{self.precision}.sh"

    def flux_name(self) -> str:
        """Return the name of the file in flux1's image, whose numbers have at least two digits."""
        return f"config_{self.system}_{self.nodes:02}x{self.gpus:02}x{self.batch:02}.sh"


# The configs of the published round, and some for one, two and four nodes of a small test rack. The
# reference convergence points cover all batch sizes, except the one of "_big". A run uses "_big" only if
# bench_config names it.
LLAMA2 = (
    Config("GB300", 1, 4, 2),
    Config("GB300", 2, 4, 1),
    Config("GB300", 2, 4, 1, precision="_fp4"),
    Config("GB300", 2, 4, 32, precision="_big"),
    Config("GB300", 4, 4, 1, cp=2),
    Config("GB300", 18, 4, 1, cp=8),
    Config("GB300", 128, 4, 1, cp=8),
    Config("GB200", 1, 4, 2),
    Config("GB200", 2, 4, 1),
    Config("GB200", 18, 4, 1, cp=8),
    Config("GB200", 128, 4, 1, cp=8),
    Config("DGXB200", 1, 8, 1),
    Config("DGXB200", 1, 8, 1, precision="_fp4"),
    Config("DGXB200", 8, 8, 1, cp=8),
    Config("DGXH100", 1, 8, 4, tp=4),
)
LLAMA31_8B = (
    Config("GB300", 1, 4, 4),
    Config("GB300", 2, 4, 2),
    Config("GB300", 2, 4, 2, precision="_fp4"),
    Config("GB300", 4, 4, 1),
    Config("GB300", 18, 4, 1, cp=2),
    Config("GB300", 128, 4, 1, tp=2, cp=4),
    Config("GB200", 2, 4, 2),
    Config("GB200", 18, 4, 1, cp=2),
    Config("DGXB200", 1, 8, 2),
    Config("DGXB200", 1, 8, 2, precision="_fp4"),
    Config("DGXB200", 8, 8, 1, cp=2),
    Config("DGXH100", 1, 8, 2),
)
FLUX1 = (
    Config("GB300", 1, 4, 128),
    Config("GB300", 2, 4, 64),
    Config("GB300", 4, 4, 64),
    Config("GB300", 18, 4, 32),
    Config("GB300", 128, 4, 4),
    Config("GB200", 4, 4, 32),
    Config("GB200", 18, 4, 32),
    Config("B200", 1, 8, 64),
    Config("B200", 2, 8, 32),
    Config("B200", 9, 8, 32),
)

COMMON = """\
# Exports of all configs of this fake image. Each config sources this file.
export MLPERF_RULESET=${MLPERF_RULESET:-5.1.0}
"""
HYPERPARAMETERS = {
    "llama2_70b_lora": ("LR=0.0005", "MAX_STEPS=800"),
    "llama31_8b": (
        "LR=0.0008",
        "MAX_STEPS=1200000",
        "OPT_LR_DECAY_STEPS=1200000",
        "VAL_SAMPLES=1024",
        "WARMUP_STEPS=96",
    ),
    "flux1": (
        "LEARNING_RATE=${LEARNING_RATE:-0.0002}",
        "VAL_CHECK_INTERVAL=${VAL_CHECK_INTERVAL:-262144}",
        "WARMUP_STEPS=${WARMUP_STEPS:-1600}",
    ),
}
"""Exports with hyperparameters for each benchmark, as in the published configs. The training logs these
values."""
_TEXT = """\
# A config of a fake image: what to run on {nodes} x {gpus} GPUs.
source "$(dirname "${{BASH_SOURCE[0]}}")/config_common.sh"
{exports}
export DGXNNODES={nodes}
export DGXNGPU={gpus}
export WALLTIME_RUNANDTIME=5
export WALLTIME=$((5 + ${{NEXP:-1}} * (WALLTIME_RUNANDTIME + 5)))
# As in the originals: named after the file that is sourced outermost, which need not be this one.
DGXSYSTEM=$(basename "$(readlink -f "${{BASH_SOURCE[-1]}}")" | sed 's/^config_//;s/\\.sh$//')
export DGXSYSTEM
"""


def files(benchmark: str) -> dict[str, str]:
    """Return the texts of the config files of a benchmark's image, by file name."""
    if benchmark == "flux1":
        found = {
            one.flux_name(): (
                one,
                [f"export BATCHSIZE={one.batch * one.nodes * one.gpus}", f"export MBS={one.batch}"],
            )
            for one in FLUX1
        }
    else:
        suffix, configs = ("_8b", LLAMA31_8B) if benchmark == "llama31_8b" else ("", LLAMA2)
        found = {}
        for one in configs:
            exports = [f"export MINIBS={one.batch}", f"export TP={one.tp} PP=1 CP={one.cp}"]
            if suffix:
                exports.append("export MODEL_SIZE=8b")
            if one.precision == "_fp4":
                exports.append("export FP4=True")
            found[one.llm_name(suffix)] = (one, exports)
    hyperparameters = [f"export {setting}" for setting in HYPERPARAMETERS[benchmark]]
    texts = {
        name: _TEXT.format(nodes=one.nodes, gpus=one.gpus, exports="\n".join(exports + hyperparameters))
        for name, (one, exports) in found.items()
    }
    return texts | {"config_common.sh": COMMON}
