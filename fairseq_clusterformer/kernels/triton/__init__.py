"""Kernels in Triton: CUDA, or any machine under Triton's interpreter (``TRITON_INTERPRET=1``).
Its modules are imported by the first call, since not every machine has Triton."""

from torch import Tensor

from ..kernel import Call, Gradients, OneByOne

WIDEST = 256  # width of the widest head that the kernels are made for


class Triton(OneByOne):
    def obstacle(self, q: Tensor) -> tuple[str, str] | None:
        try:
            import triton
        except ImportError:
            problem = "the kernel is triton, which is not installed"
            return problem, "allowed: blocks, or install triton"
        if q.device.type != "cuda" and not triton.knobs.runtime.interpret:
            problem = f"the kernel is triton, and q is on {q.device}"
            return problem, "allowed: tensors on cuda; the kernel blocks takes any device"
        if q.size(-1) > WIDEST:
            allowed = f"allowed for the kernel triton: up to {WIDEST}"
            return f"a head is {q.size(-1)} wide", f"{allowed}; the kernel blocks takes any width"
        return None

    def attend(self, call: Call) -> tuple[Tensor, Tensor]:
        from .attention import forward

        return forward(call)

    def gradients(self, call: Call, *of_carry) -> Gradients:
        from .attention import backward

        return backward(call, *of_carry)
