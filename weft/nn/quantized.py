"""Layers whose weights are stored in few bits; see `weft.quantization`."""
# Tests: tests/core/functional/test_quantization.py

from __future__ import annotations

from typing import Self

from weft.core.args.handle import value_of
from weft.core.functional.ggml import BlockTensor
from weft.core.functional.integer_blocks import Activations, IntegerBlocks
from weft.core.functional.quantization import QuantizedTensor, check_layout, known, quantize, unpack
from weft.core.layout.creation import zeros
from weft.core.layout.gather import index_select
from weft.core.layout.movement import flatten, narrow, reshape
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import DType, accumulator, float16, float32, int8, uint8
from weft.nn import functional as F
from weft.nn.linear import Embedding, Linear
from weft.nn.module import Module, Parameter


class _Blocks(Module):
    """A (rows, columns) weight in blocks along its columns: buffers `qweight`, `scale` and, if affine, `offset`."""

    qweight: Tensor
    scale: Tensor
    offset: Tensor | None

    def __init__(
        self,
        rows: int,
        columns: int,
        bits: int,
        block: int,
        symmetric: bool,
        scale_dtype: DType,
        device: str | None,
        code: DType | None,
    ) -> None:
        super().__init__()
        check_layout(type(self).__name__, bits, block, scale_dtype, code, symmetric)
        self.bits, self.block, self.columns, self.code = bits, block, columns, code
        count = -(-columns // block)
        dtype = int8 if symmetric and bits == 8 and code is None else uint8
        self.register_buffer("qweight", zeros(rows, count, block * bits // 8, dtype=dtype, device=device))
        self.register_buffer("scale", zeros(rows, count, 1, dtype=scale_dtype, device=device))
        offset = None if symmetric else zeros(rows, count, 1, dtype=scale_dtype, device=device)
        self.register_buffer("offset", offset)

    def fill(self, weight: QuantizedTensor) -> None:
        """Take over what was quantized."""
        if (weight.bits, weight.block, weight.axis, weight.code) != (self.bits, self.block, 1, self.code):
            raise ArgumentError(
                f"{type(self).__name__}: needs {self.bits} bits in blocks of {self.block} along axis 1 "
                f"({self.code.name if self.code else 'integers'}), got {weight}"
            )
        self.qweight, self.scale, self.offset = weight.data, weight.scale, weight.offset

    def quantized(self, dtype: DType = float32) -> QuantizedTensor:
        """The weight."""
        rows = known(self.qweight.shape)[0]
        return QuantizedTensor(
            self.qweight, self.scale, self.offset, self.bits, 1, (rows, self.columns), dtype, self.code
        )

    def _layout(self) -> str:
        kind = self.code.name if self.code else "symmetric" if self.offset is None else "affine"
        return f"bits={self.bits}, block={self.block}, {kind}"


class QuantizedLinear(_Blocks):
    """y = x @ weight.T + bias, the weight in `bits` (8 or 4) per element and a scale per block of each row.

    `code`: floats of 8 bits (weft.float8_e4m3fn, weft.float8_e5m2) in place of integers. Shapes as `Linear`.
    The weight is widened where the product loads it, never as a whole; float16 and bfloat16 inputs are multiplied in
    float32. Gradients flow to the input and the bias, not to the weight;
    `.half()` and its kin convert the scales and the bias only.

    >>> layer = weft.nn.QuantizedLinear.from_linear(weft.nn.Linear(768, 3072), bits=4, block=32)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        bits: int = 8,
        block: int = 32,
        symmetric: bool = True,
        scale_dtype: DType = float16,
        device: str | None = None,
        dtype: DType | None = None,
        code: DType | None = None,
    ) -> None:
        super().__init__(out_features, in_features, bits, block, symmetric, scale_dtype, device, code)
        self.in_features, self.out_features = in_features, out_features
        self.register_parameter(
            "bias", Parameter(zeros(out_features, device=device, dtype=dtype)) if bias else None
        )

    @classmethod
    def from_linear(
        cls,
        linear: Linear,
        bits: int = 8,
        block: int = 32,
        symmetric: bool = True,
        scale_dtype: DType = float16,
        weight: QuantizedTensor | None = None,
        code: DType | None = None,
    ) -> Self:
        """A layer with the weight of `linear`, quantized (or given quantized already), and its bias."""
        if weight is None:
            weight = quantize(
                linear.weight, bits, block, symmetric=symmetric, scale_dtype=scale_dtype, code=code
            )
        sizes = linear.in_features, linear.out_features
        layer = cls(*sizes, False, bits, block, symmetric, scale_dtype, code=weight.code)
        layer.fill(weight)
        layer.bias = linear.bias
        return layer

    def forward(self, x: Tensor) -> Tensor:
        v = value_of("QuantizedLinear", x)
        if not v.dtype.is_float:
            raise DTypeError(
                f"QuantizedLinear: needs a float input, got {v.dtype.name}; convert it with .float()"
            )
        if not v.shape or v.shape[-1] != self.in_features:
            raise ShapeError(
                f"QuantizedLinear: the input's last dimension must be {self.in_features}, got shape {tuple(v.shape)}"
            )
        wide = accumulator(v.dtype)
        bias = None if self.bias is None else self.bias.to(wide)
        out = F.linear(x.to(wide), self.quantized(wide).dequantize(), bias)
        return out.to(v.dtype)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"{self._layout()}"
        )


class QuantizedEmbedding(_Blocks):
    """y[..., :] = weight[x[...]], the weight in `bits` (8 or 4) per element: only the rows that are read are widened.

    `code`: floats of 8 bits in place of integers. Shapes: (...) of int -> (..., embedding_dim), in `dtype`; no
    gradients.

    >>> table = weft.nn.QuantizedEmbedding.from_embedding(weft.nn.Embedding(50257, 768), bits=8)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bits: int = 8,
        block: int = 32,
        symmetric: bool = True,
        scale_dtype: DType = float16,
        device: str | None = None,
        dtype: DType = float32,
        code: DType | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, bits, block, symmetric, scale_dtype, device, code)
        self.num_embeddings, self.embedding_dim, self.dtype = num_embeddings, embedding_dim, dtype

    @classmethod
    def from_embedding(
        cls,
        embedding: Embedding,
        bits: int = 8,
        block: int = 32,
        symmetric: bool = True,
        scale_dtype: DType = float16,
        weight: QuantizedTensor | None = None,
        code: DType | None = None,
    ) -> Self:
        """A layer with the rows of `embedding`, quantized (or given quantized already)."""
        if embedding.max_norm is not None:
            raise ArgumentError(
                "QuantizedEmbedding: max_norm changes the weight at each call; quantize one without it"
            )
        if weight is None:
            weight = quantize(
                embedding.weight, bits, block, symmetric=symmetric, scale_dtype=scale_dtype, code=code
            )
        rows, columns = embedding.num_embeddings, embedding.embedding_dim
        layout = bits, block, symmetric, scale_dtype
        layer = cls(rows, columns, *layout, dtype=embedding.weight.dtype, code=weight.code)
        layer.fill(weight)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        v = value_of("QuantizedEmbedding", x)
        if not v.dtype.is_int:
            raise DTypeError(
                f"QuantizedEmbedding: needs integers, got {v.dtype.name}; convert them with .long()"
            )
        at = flatten(x) if v.shape else reshape(x, (1,))
        parts = [
            None if t is None else index_select(t, 0, at) for t in (self.qweight, self.scale, self.offset)
        ]
        assert parts[0] is not None and parts[1] is not None
        rows = unpack(parts[0], parts[1], parts[2], self.bits, accumulator(self.dtype), self.code)
        found = narrow(reshape(rows, (rows.shape[0], -1)), -1, 0, self.columns)
        return reshape(found, (*v.shape, self.columns)).to(self.dtype)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {self._layout()}"


class _BlockWeight(Module):
    """A (rows, columns) weight in a block format of ggml, each row in blocks: buffer `blocks`, uint8."""

    blocks: Tensor

    def __init__(self, weight: BlockTensor) -> None:
        super().__init__()
        if len(weight.shape) != 2:
            raise ShapeError(f"{type(self).__name__}: needs a weight of 2 dimensions, got {weight}")
        self.format, self.rows, self.columns = weight.format, *weight.shape
        self.register_buffer("blocks", weight.data)

    def weight_of(self, blocks: Tensor, dtype: DType) -> Tensor:
        """The values of rows in blocks."""
        return BlockTensor(blocks, self.format, (known(blocks.shape)[0], self.columns)).dequantize(dtype)


class BlockLinear(_BlockWeight):
    """y = x @ weight.T + bias, the weight in a block format of ggml, which the product widens as it loads it.

    Shapes as `Linear`. float16 and bfloat16 inputs are multiplied in float32. Gradients flow to the input and the
    bias, not to the weight.

    >>> layer = weft.nn.BlockLinear(weft.io.load_gguf("model.gguf")["blk.0.attn_q.weight"])
    """

    def __init__(self, weight: BlockTensor, bias: Tensor | None = None) -> None:
        super().__init__(weight)
        self.register_parameter("bias", None if bias is None else Parameter(bias))

    def forward(self, x: Tensor) -> Tensor:
        v = value_of("BlockLinear", x)
        if not v.dtype.is_float:
            raise DTypeError(
                f"BlockLinear: needs a float input, got {v.dtype.name}; convert it with .float()"
            )
        if not v.shape or v.shape[-1] != self.columns:
            raise ShapeError(
                f"BlockLinear: the input's last dimension must be {self.columns}, got shape {tuple(v.shape)}"
            )
        wide = accumulator(v.dtype)
        bias = None if self.bias is None else self.bias.to(wide)
        out = F.linear(x.to(wide), self.weight_of(self.blocks, wide), bias)
        return out.to(v.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.columns}, out_features={self.rows}, bias={self.bias is not None}, {self.format.name}"


class IntegerLinear(Module):
    """y = x @ weight.T + bias, the weight in a block format of ggml, each block of 32 inputs rounded to 8 bits.

    Shapes as `Linear`. Products of bytes are summed in int32, by instructions for that where there are any. What is
    lost is what rounding x loses: with steps of max |x| / 127 in each block,

        |y - (x @ weight.T + bias)| <= sum over blocks of max |x| / 254 * sum |weight|

    The weight is laid out anew, once, in as many bytes. For formats whose numbers are steps of equal size: not IQ4_NL,
    IQ4_XS and MXFP4 (ArgumentError). No gradients. Source: llama.cpp's products with Q8_0 activations.

    >>> layer = weft.nn.IntegerLinear(weft.io.load_gguf("model.gguf")["blk.0.attn_q.weight"])
    """

    def __init__(self, weight: BlockTensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self._blocks = IntegerBlocks.of(weight)
        self.format, (self.rows, self.columns) = weight.format, self._blocks.shape
        for name, t in self._blocks.tensors().items():
            self.register_buffer(name, t)
        self.register_parameter("bias", None if bias is None else Parameter(bias))

    def forward(self, x: Tensor) -> Tensor:
        v = value_of("IntegerLinear", x)
        if not v.dtype.is_float:
            raise DTypeError(
                f"IntegerLinear: needs a float input, got {v.dtype.name}; convert it with .float()"
            )
        if not v.shape or v.shape[-1] != self.columns:
            raise ShapeError(
                f"IntegerLinear: the input's last dimension must be {self.columns}, got shape {tuple(v.shape)}"
            )
        blocks = self._blocks.with_tensors(dict(self.named_buffers()))
        rows = reshape(x.detach(), (-1, self.columns)).to(float32)
        out = reshape(blocks.linear(Activations.of(rows)), (*v.shape[:-1], self.rows))
        out = out if self.bias is None else out + self.bias.to(float32)
        return out.to(v.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.columns}, out_features={self.rows}, bias={self.bias is not None}, {self.format.name}"


class BlockEmbedding(_BlockWeight):
    """y[..., :] = weight[x[...]], the weight in a block format of ggml: only the rows that are read are widened.

    Shapes: (...) of int -> (..., columns), float32. No gradients.

    >>> table = weft.nn.BlockEmbedding(weft.io.load_gguf("model.gguf")["token_embd.weight"])
    """

    def forward(self, x: Tensor) -> Tensor:
        v = value_of("BlockEmbedding", x)
        if not v.dtype.is_int:
            raise DTypeError(f"BlockEmbedding: needs integers, got {v.dtype.name}; convert them with .long()")
        at = flatten(x) if v.shape else reshape(x, (1,))
        return reshape(self.weight_of(index_select(self.blocks, 0, at), float32), (*v.shape, self.columns))

    def extra_repr(self) -> str:
        return f"{self.rows}, {self.columns}, {self.format.name}"
