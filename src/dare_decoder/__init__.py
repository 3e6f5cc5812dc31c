"""Text from a transformers model, near the hardware; it knows of no method that trains one.

`decoder` samples by `paged` (pages of keys and values, slots that are refilled, Triton kernels)
where the model fits it, by the model's own pass elsewhere. `sampling` says what is drawn from, for
who draws and who scores. `batching` and `packed_attention` read given texts of any length together.
"""

from dare_decoder.decoder import Decoder
from dare_decoder.request import Request
from dare_decoder.sampling import Sampling

__all__ = ["Decoder", "Request", "Sampling"]
