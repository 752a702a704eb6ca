"""Which code computes attention? Same numbers, other speed; the formula itself is in model/attention.py.

    auto            the fastest that can serve here; a run says which, and why                  (choice.py)
    eager           the formula, written out; memory grows with T * S                           (model/attention.py)
    sdpa            torch.nn.functional.scaled_dot_product_attention: PyTorch picks the kernel  (kernels.py)
    flash           PyTorch's flash kernel and only that; masks become lengths                  (kernels.py)
    flash3, flash4  as flash, on FlashAttention-3 / -4, where installed                         (kernels.py)
    varlen          documents laid end to end even where there is one a row                     (kernels.py)
    flex            FlexAttention: masks as code, compiled into the kernel                      (kernels.py)
    blocked         bfloat16 matrix products over blocks of queries, for training on a CPU      (kernels.py)

Trained with on an H100: eager, sdpa, flash, flex, varlen. Not tested yet: flash3, flash4. The others also on a CPU.
"""

from typing import Literal

AttentionImplementation = Literal["auto", "eager", "flash", "flex", "flash3", "flash4", "sdpa", "blocked", "varlen"]
