"""The shapes of the variables of well-known models, for `bench` and `describe`."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def resnet50() -> list[tuple[int, ...]]:
    """The 161 shapes of a ResNet-50's variables, in the order of its layers: 25.6 M elements."""

    def convolution(size: int, inputs: int, outputs: int) -> Iterator[tuple[int, ...]]:
        yield (size, size, inputs, outputs)
        yield from [(outputs,)] * 2  # the scale and shift of its batch normalisation

    shapes = [*convolution(7, 3, 64)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(1, inputs, width)
            shapes += convolution(3, width, width)
            shapes += convolution(1, width, 4 * width)
            if block == 0:
                shapes += convolution(1, inputs, 4 * width)
            inputs = 4 * width
    return [*shapes, (2048, 1000), (1000,)]


def bert_base() -> list[tuple[int, ...]]:
    """The 206 shapes of a BERT-base with its heads for pre-training: 110.1 M elements."""
    width = 768

    def dense(inputs: int, outputs: int) -> Iterator[tuple[int, ...]]:
        yield (inputs, outputs)
        yield (outputs,)

    norm = [(width,), (width,)]
    shapes = [(30522, width), (512, width), (2, width), *norm]
    for _ in range(12):
        for _ in range(4):  # query, key, value and output of the attention
            shapes += dense(width, width)
        shapes += [*norm, *dense(width, 4 * width), *dense(4 * width, width), *norm]
    shapes += dense(width, width)  # of the pooler
    # The words' head has the table of the embedding, and a shift of its own.
    return [*shapes, *dense(width, width), *norm, (30522,), *dense(width, 2)]


MODELS: dict[str, Callable[[], list[tuple[int, ...]]]] = {
    "bert-base": bert_base,
    "resnet50": resnet50,
}
