"""OpenVINO: models that torch exported, in float32."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.frameworks.run import Run
from benchmarks.inference import NETS, exported


class OpenVino:
    """See `benchmarks.frameworks`. It runs whole models only."""

    def __init__(self, threads: int) -> None:
        import openvino

        self.ov, self.core, self.threads = openvino, openvino.Core(), threads

    def versions(self) -> dict[str, str]:
        return {"openvino": self.ov.__version__}

    def inference(self, name: str) -> Run:
        settings = {
            "INFERENCE_NUM_THREADS": self.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # else it computes in bfloat16 where the processor can
        }  # fmt: skip
        with TemporaryDirectory(prefix="weft-bench-") as folder:
            net = self.core.compile_model(str(exported(name, Path(folder))), "CPU", settings)
        request, x = net.create_infer_request(), NETS[name].inputs(1)
        given = self.ov.Tensor(x, shared_memory=True)
        request.set_input_tensor(given)

        def call() -> Any:
            request.infer()
            assert given and x is not None  # whose memory it reads
            return request.get_output_tensor(0).data

        return Run(call)
