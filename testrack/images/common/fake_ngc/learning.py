"""Define three small models with their gradients, in NumPy.

training.py trains one of these models. Each takes a flat vector of parameters and the numbers of some
samples, and returns the *sums* over those samples, so that any number of ranks that share a batch gets the
result of one rank.
"""

from __future__ import annotations

import io
import tarfile
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from fake_ngc.data import CENTRES, PIXELS, RANK, TOKENS


class MissingDataError(FileNotFoundError):
    """Data that are not at the path at which the run script should mount them."""


def load(path: Path) -> np.ndarray:
    """Return the array in a file, or raise MissingDataError if the file is missing."""
    if not path.is_file():
        raise MissingDataError(f"{path} is not there: was the right folder mounted, and was it staged?")
    return np.load(path, allow_pickle=False)


def _cross_entropy(logits: np.ndarray, text: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the sum of losses over all pairs of neighbours in a text, and the gradient by the logits.

    The loss of all pairs of the same two tokens is the same, so counting them is enough.
    """
    pairs = (text[:, :-1] * TOKENS + text[:, 1:]).ravel()
    counts = np.bincount(pairs, minlength=TOKENS * TOKENS).reshape(TOKENS, TOKENS)
    logits = logits - logits.max(axis=1, keepdims=True)
    chances = np.exp(logits)
    chances /= chances.sum(axis=1, keepdims=True)
    loss = -(counts * np.log(chances + 1e-30)).sum()
    return float(loss), counts.sum(axis=1, keepdims=True) * chances - counts


class Model(ABC):
    """The base of models, with parameters in one vector that is cut into named arrays."""

    NOISE = 0
    """Number of random numbers that come with each sample."""
    shapes: dict[str, tuple[int, ...]]
    samples: int
    """Number of samples of the training data."""
    eval_samples: int

    @property
    def size(self) -> int:
        """Return the number of parameters."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def cut(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return views of a vector as the named arrays."""
        parts, at = {}, 0
        for name, shape in self.shapes.items():
            length = int(np.prod(shape))
            parts[name] = vector[at : at + length].reshape(shape)
            at += length
        return parts

    @abstractmethod
    def start(self, generator: np.random.Generator) -> np.ndarray:
        """Return the parameters to begin with."""

    @abstractmethod
    def learn(self, vector: np.ndarray, samples: np.ndarray, noise: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the sum over samples of the mean loss per item, and its gradient.

        Each sample comes with NOISE random numbers, so that they do not depend on the rank that gets the
        sample.
        """

    @abstractmethod
    def measure(self, vector: np.ndarray, samples: np.ndarray) -> float:
        """Return the loss of :meth:`learn`, but on samples of the evaluation data."""


class _Text(Model):
    """The base of models that predict the next token of a text from the present one."""

    def __init__(self, train: np.ndarray, held_out: np.ndarray) -> None:
        self.train, self.held_out = train.astype(np.int64), held_out.astype(np.int64)
        self.samples, self.eval_samples = len(train), len(held_out)

    @abstractmethod
    def logits(self, parts: dict[str, np.ndarray]) -> np.ndarray:
        """Return the logits of the next token, with a row for each present token."""

    @abstractmethod
    def back(self, parts: dict[str, np.ndarray], by_logits: np.ndarray) -> np.ndarray:
        """Return the gradient by the parameters from the gradient by the logits."""

    def learn(self, vector: np.ndarray, samples: np.ndarray, noise: np.ndarray) -> tuple[float, np.ndarray]:
        parts, text = self.cut(vector), self.train[samples]
        loss, by_logits = _cross_entropy(self.logits(parts), text)
        items = text.shape[1] - 1
        return loss / items, self.back(parts, by_logits) / items

    def measure(self, vector: np.ndarray, samples: np.ndarray) -> float:
        text = self.held_out[samples]
        loss, _gradient = _cross_entropy(self.logits(self.cut(vector)), text)
        return loss / (text.shape[1] - 1)


class LowRankAdapter(_Text):
    """A LoRA of a checkpoint, whose logits are fixed. A product of two thin matrices is added and learned."""

    shapes = {"down": (TOKENS, RANK), "up": (RANK, TOKENS)}  # noqa: RUF012

    def __init__(self, data: Path, checkpoint: Path) -> None:
        super().__init__(load(data / "train.npy"), load(data / "validation.npy"))
        self.base = load(checkpoint / "weights/base_logits.npy").astype(np.float64)

    def start(self, generator: np.random.Generator) -> np.ndarray:
        vector = np.zeros(self.size)
        self.cut(vector)["down"][:] = 0.3 * generator.standard_normal((TOKENS, RANK))
        return vector

    def logits(self, parts: dict[str, np.ndarray]) -> np.ndarray:
        return self.base + parts["down"] @ parts["up"]

    def back(self, parts: dict[str, np.ndarray], by_logits: np.ndarray) -> np.ndarray:
        return np.concatenate([(by_logits @ parts["up"].T).ravel(), (parts["down"].T @ by_logits).ravel()])


class FromScratch(_Text):
    """A model of an embedding and an output layer, which are both learned."""

    WIDTH = 40
    shapes = {"embedding": (TOKENS, WIDTH), "output": (WIDTH, TOKENS), "bias": (TOKENS,)}  # noqa: RUF012

    def __init__(self, data: Path, tokenizer: Path) -> None:
        if not (tokenizer / "tokenizer.json").is_file():
            raise MissingDataError(
                f"{tokenizer}/tokenizer.json is not there: was 8b/tokenizer staged and mounted?"
            )
        names = ("c4-train.en_6", "c4-validation-91205-samples.en")
        super().__init__(*(_megatron(data / f"{name}_text_document") for name in names))

    def start(self, generator: np.random.Generator) -> np.ndarray:
        return 0.1 * generator.standard_normal(self.size)

    def logits(self, parts: dict[str, np.ndarray]) -> np.ndarray:
        return parts["embedding"] @ parts["output"] + parts["bias"]

    def back(self, parts: dict[str, np.ndarray], by_logits: np.ndarray) -> np.ndarray:
        by_embedding, by_output = by_logits @ parts["output"].T, parts["embedding"].T @ by_logits
        return np.concatenate([by_embedding.ravel(), by_output.ravel(), by_logits.sum(axis=0)])


def _megatron(prefix: Path) -> np.ndarray:
    """Read Megatron's pair of files. All sequences of the fake data are of the same length."""
    tokens, index = prefix.with_name(prefix.name + ".bin"), prefix.with_name(prefix.name + ".idx")
    for path in (tokens, index):
        if not path.is_file():
            raise MissingDataError(f"{path} is not there: was the right folder mounted, and was it staged?")
    rows = int.from_bytes(index.read_bytes()[18:26], "little")
    return np.fromfile(tokens, np.uint16).reshape(rows, -1)


class Denoiser(Model):
    """A flow-matching model, which predicts the difference between the noise and the picture in a mixture.

    It also gets the class of the picture and the share of the noise.
    """

    WIDTH = 48
    NOISE = PIXELS + 1
    INPUTS = PIXELS + CENTRES + 1
    shapes = {  # noqa: RUF012
        "first": (INPUTS, WIDTH),
        "first_bias": (WIDTH,),
        "second": (WIDTH, PIXELS),
        "second_bias": (PIXELS,),
    }

    def __init__(self, energon: Path) -> None:
        if not (energon / ".nv-meta/dataset.yaml").is_file():
            raise MissingDataError(
                f"{energon}/.nv-meta/dataset.yaml is not there: was `energon prepare` run?"
            )
        load(energon / "empty_encodings/t5_encodings.npy")
        self.train, self.held_out = (_shards(energon / part) for part in ("train", "val"))
        self.samples, self.eval_samples = len(self.train), len(self.held_out)
        self.eval_noise = np.random.default_rng(5).random((len(self.held_out), self.NOISE))

    def start(self, generator: np.random.Generator) -> np.ndarray:
        return 0.2 * generator.standard_normal(self.size)

    def _pass(
        self, parts: dict[str, np.ndarray], rows: np.ndarray, drawn: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pictures, shown = rows[:, :PIXELS].astype(np.float64), rows[:, PIXELS].astype(np.int64)
        # Uniform noise with mean 0 and variance 1 replaces normal noise, which has tails.
        noise, time = np.sqrt(12) * (drawn[:, :PIXELS] - 0.5), drawn[:, PIXELS:]
        mixed = (1 - time) * pictures + time * noise
        inputs = np.concatenate([mixed, np.eye(CENTRES)[shown], time], axis=1)
        hidden = np.tanh(inputs @ parts["first"] + parts["first_bias"])
        error = hidden @ parts["second"] + parts["second_bias"] - (noise - pictures)
        return inputs, hidden, error

    def learn(self, vector: np.ndarray, samples: np.ndarray, noise: np.ndarray) -> tuple[float, np.ndarray]:
        parts = self.cut(vector)
        inputs, hidden, error = self._pass(parts, self.train[samples], noise)
        by_error = 2 * error / PIXELS
        by_hidden = by_error @ parts["second"].T * (1 - hidden**2)
        gradient = [inputs.T @ by_hidden, by_hidden.sum(axis=0), hidden.T @ by_error, by_error.sum(axis=0)]
        return float((error**2).mean(axis=1).sum()), np.concatenate([one.ravel() for one in gradient])

    def measure(self, vector: np.ndarray, samples: np.ndarray) -> float:
        drawn = self.eval_noise[samples]
        _inputs, _hidden, error = self._pass(self.cut(vector), self.held_out[samples], drawn)
        return float((error**2).mean(axis=1).sum())


def _shards(folder: Path) -> np.ndarray:
    """Read the pictures of a webdataset."""
    shards = sorted(folder.glob("*.tar"))
    if not shards:
        raise MissingDataError(f"no *.tar in {folder}: was to_webdataset.py run?")
    parts = []
    for shard in shards:
        with tarfile.open(shard) as archive:
            for member in archive:
                stream = archive.extractfile(member)
                if stream is not None and member.name.endswith(".latents.npy"):
                    parts.append(np.load(io.BytesIO(stream.read()), allow_pickle=False))
    return np.concatenate(parts)


class Adam:
    """The optimizer Adam, with the same state on every rank."""

    def __init__(self, size: int, rate: float) -> None:
        self.rate, self.steps = rate, 0
        self.mean, self.square = np.zeros(size), np.zeros(size)

    def step(self, vector: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the parameters after one step."""
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.95 * self.square + 0.05 * gradient**2
        mean = self.mean / (1 - 0.9**self.steps)
        square = self.square / (1 - 0.95**self.steps)
        return vector - self.rate * mean / (np.sqrt(square) + 1e-8)
