"""ONNX Runtime's attention on its WebGPU provider, timed from host memory to host memory.

    pip install onnxruntime-webgpu onnx numpy
    python onnx_webgpu.py [HEADS TOKENS HEAD_DIM]

The default is prefill-64 of `wgpu-attention bench`: 8 heads, 512 tokens, head_dim 64,
f32, no mask. The first run, with compilation, is shown apart; the best of eight others
counts. The largest difference from float64 is printed beside it. Operations are counted
as 4 H Nq Nk D.
"""

import sys
import time

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper

PROVIDER = "WebGpuExecutionProvider"


def session(heads, tokens, dim):
    """A model of one node, com.microsoft.MultiHeadAttention over (B, N, H * D)."""
    shape = [1, tokens, heads * dim]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkvo"}
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["o"], domain="com.microsoft", num_heads=heads
    )
    graph = helper.make_graph([node], "attention", [values[n] for n in "qkv"], [values["o"]])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains)
    model.ir_version = 9
    found = onnxruntime.InferenceSession(model.SerializeToString(), providers=[PROVIDER])
    if found.get_providers()[0] != PROVIDER:
        sys.exit(f"{PROVIDER} was not used: {found.get_providers()}")
    return found


def exact(q, k, v, heads, dim):
    """Attention in float64."""
    split = lambda x: x[0].reshape(-1, heads, dim).transpose(1, 0, 2).astype(numpy.float64)
    q, k, v = split(q), split(k), split(v)
    scores = q @ k.transpose(0, 2, 1) / numpy.sqrt(dim)
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return (weights @ v).transpose(1, 0, 2).reshape(1, -1, heads * dim)


def main():
    heads, tokens, dim = map(int, sys.argv[1:4]) if len(sys.argv) > 1 else (8, 512, 64)
    random = numpy.random.default_rng(0)
    shape = (1, tokens, heads * dim)
    inputs = {name: random.uniform(-1, 1, shape).astype(numpy.float32) for name in "qkv"}

    def run():
        started = time.perf_counter()
        output = attention.run(None, inputs)[0]
        return time.perf_counter() - started, output

    started = time.perf_counter()
    attention = session(heads, tokens, dim)
    run()
    first = time.perf_counter() - started
    best, output = min((run() for _ in range(8)), key=lambda found: found[0])
    error = numpy.abs(output - exact(**inputs, heads=heads, dim=dim)).max()
    flop = 4 * heads * tokens * tokens * dim
    print(f"ONNX Runtime {onnxruntime.__version__}, {PROVIDER}")
    print(f"heads {heads}, tokens {tokens}, head_dim {dim}, f32; best of 8")
    print(f"{best * 1e3:.2f} ms, {flop / best / 1e9:.2f} GFLOP/s, first run {first:.2f} s")
    print(f"furthest from float64: {error:.1e}")


main()
