# Written by tools/surface.py from weft/surface/table.py.

from weft.core.args.modes import (
    detect_anomaly as detect_anomaly, enable_grad as enable_grad, inference_mode as inference_mode,
    no_grad as no_grad, set_grad_enabled as set_grad_enabled, variable as variable,
)
from weft.core.grad.checkpointing import (
    checkpoint as checkpoint, checkpoint_sequential as checkpoint_sequential,
)
from weft.core.grad.differentiate import backward_all as backward_all, gradients as gradients
from weft.core.grad.function import (
    Function as Function, FunctionCtx as FunctionCtx, once_differentiable as once_differentiable,
)
from weft.core.grad.gradcheck import gradcheck as gradcheck, gradgradcheck as gradgradcheck
from weft.core.grad.jacobians import functional as functional
Variable = variable
backward = backward_all
grad = gradients
hessian = functional.hessian
jacobian = functional.jacobian
jvp = functional.jvp
set_detect_anomaly = detect_anomaly
vjp = functional.vjp
