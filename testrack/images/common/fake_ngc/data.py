"""Make small fakes of the data sets of MLPerf Training, in their real layout and with fixed seeds.

downloads.py, the images' download scripts, calibrate.py and tests use them. Each function returns the content
of the files by path.

Text is a Markov chain over 64 tokens, so that a small model can learn from it. Pictures are points around a
few centres, so that a small model can learn to remove noise from them.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct

import numpy as np

TOKENS = 64
RANK = 16
"""Rank of the difference between the languages before and after fine-tuning. LoRA of this rank learns it."""
PIXELS, CENTRES = 16, 8
Files = dict[str, bytes]


def _chain(generator: np.random.Generator, logits: np.ndarray, rows: int, length: int) -> np.ndarray:
    """Draw rows of tokens. Each token depends on the one before."""
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    edges = np.cumsum(chances / chances.sum(axis=1, keepdims=True), axis=1)
    text = np.empty((rows, length), dtype=np.uint16)
    text[:, 0] = generator.integers(0, TOKENS, rows)
    for at in range(1, length):
        drawn = generator.random((rows, 1))
        text[:, at] = np.minimum((edges[text[:, at - 1]] < drawn).sum(axis=1), TOKENS - 1)
    return text


def _language(seed: int) -> tuple[np.random.Generator, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator, 1.6 * generator.standard_normal((TOKENS, TOKENS))


def _npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def gov_report() -> Files:
    """Return the data set of llama2_70b_lora, in a language that differs from the checkpoint's."""
    generator, logits = _language(2)
    left, right = (generator.standard_normal((TOKENS, RANK)) for _side in range(2))
    changed = logits + 0.45 * left @ right.T
    return {
        "train.npy": _npy(_chain(generator, changed, 1200, 64)),
        "validation.npy": _npy(_chain(generator, changed, 173, 64)),
    }


def llama2_model() -> Files:
    """Return the checkpoint of llama2_70b_lora, which is a model of the language before fine-tuning."""
    _generator, logits = _language(2)
    return {
        "context/io.json": _json({"fake": True, "vocab_size": TOKENS, "lora_rank": RANK}),
        "context/model.yaml": b"# A fake: next-token logits for 64 tokens.\n",
        "weights/metadata.json": _json({"sharded_backend": "npy", "sharded_backend_version": 1}),
        "weights/base_logits.npy": _npy(logits.astype(np.float32)),
    }


def _megatron(text: np.ndarray) -> tuple[bytes, bytes]:
    """Return tokens and index as Megatron stores them (uint16, one sequence per document)."""
    rows, length = text.shape
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, rows, rows + 1)
    sizes = np.full(rows, length, np.int32).tobytes()
    pointers = (np.arange(rows, dtype=np.int64) * length * 2).tobytes()
    documents = np.arange(rows + 1, dtype=np.int64).tobytes()
    return text.tobytes(), head + sizes + pointers + documents


def c4() -> Files:
    """Return the data set of llama31_8b."""
    generator, logits = _language(8)
    files = {}
    for name, rows in (("c4-train.en_6", 3000), ("c4-validation-91205-samples.en", 256)):
        tokens, index = _megatron(_chain(generator, logits, rows, 128))
        files[f"{name}_text_document.bin"], files[f"{name}_text_document.idx"] = tokens, index
    files["LICENSE.txt"] = b"Fake data: random numbers, nobody's.\n"
    files["NOTICE.txt"] = b"Fake data.\n"
    return files


def tokenizer() -> Files:
    """Return the tokenizer of llama31_8b."""
    words = {f"w{number}": number for number in range(TOKENS)}
    return {
        "tokenizer.json": _json({"version": "1.0", "model": {"type": "WordLevel", "vocab": words}}),
        "tokenizer_config.json": _json({"model_max_length": 8192, "tokenizer_class": "Standin"}),
        "special_tokens_map.json": _json({"bos_token": "w0", "eos_token": "w1"}),
        "LICENSE": b"Fake data: random numbers, nobody's.\n",
        "README.md": b"A fake.\n",
        "USE_POLICY.md": b"A fake.\n",
        # The original download also contains the model, which is not needed.
        "config.json": _json({"model_type": "standin"}),
        "generation_config.json": _json({}),
        "model-00001-of-00004.safetensors": b"Fake weights.\n",
        "model.safetensors.index.json": _json({}),
        "original/consolidated.00.pth": b"Fake weights.\n",
    }


def _pictures(seed: int, count: int) -> np.ndarray:
    centres = 1.5 * np.random.default_rng(77).standard_normal((CENTRES, PIXELS))
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, CENTRES, count)
    points = centres[chosen] + 0.3 * generator.standard_normal((count, PIXELS))
    return np.concatenate([points, chosen[:, None]], axis=1).astype(np.float32)


def _arrow(seed: int, count: int, shards: int) -> Files:
    """Return a data set in the layout in which `datasets` saves it, but with files in NumPy's format."""
    names = [f"data-{number:05d}-of-{shards:05d}.arrow" for number in range(shards)]
    parts = np.array_split(_pictures(seed, count), shards)
    files = {name: _npy(part) for name, part in zip(names, parts, strict=True)}
    files["state.json"] = _json({"_data_files": [{"filename": name} for name in names], "_split": "train"})
    files["dataset_info.json"] = _json({"description": "a fake", "features": {"latents": {}, "class": {}}})
    return files


def cc12m() -> Files:
    """Return the training data of flux1."""
    return _arrow(12, 9600, 4)


def coco() -> Files:
    """Return the evaluation data of flux1."""
    return _arrow(13, 1024, 2)


def empty_encodings() -> Files:
    """Return flux1's encodings of an empty prompt."""
    return {
        "clip_encodings.npy": _npy(np.zeros(CENTRES, np.float32)),
        "t5_encodings.npy": _npy(np.zeros((2, CENTRES), np.float32)),
    }


def checksums(files: Files) -> bytes:
    """Return the list that md5sum --check reads."""
    lines = [
        f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}  {name}\n"
        for name, data in sorted(files.items())
    ]
    return "".join(lines).encode()
