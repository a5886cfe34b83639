"""Time the two ways to compute attention between which `vit.model.attend` chooses.

    python -m benchmarks.attention_paths [--device cpu] [--threads 1 --clock cpu]

Times `vit.model.Attention` by both, forward and backward together and forward without gradients, for the token
counts of common ViTs, float32 and bfloat16 by autocast. Turns alternate; the figure is the median over rounds of
explicit time / fused time: above 1 the fused kernel wins.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.environment import describe, write_result
from benchmarks.step_throughput import CLOCKS
from vit import model
from vit.config import ViTConfig

# tokens, width, heads, batch: vit_micro_2, the small configuration, Ti and B at 224 px, ViT-S/8 on 224 px
CASES = ((17, 64, 4, 64), (65, 192, 3, 64), (197, 192, 3, 8), (197, 768, 12, 4), (785, 384, 6, 2))
CHOSEN = model.attend


def explicit(*qkv: Tensor, dropout: float, need_weights: bool) -> Any:
    return CHOSEN(*qkv, dropout=dropout, need_weights=True)


def fused(*qkv: Tensor, dropout: float, need_weights: bool) -> Any:
    return F.scaled_dot_product_attention(*qkv, dropout_p=dropout), None


PATHS = {"explicit": explicit, "sdpa": fused}


def seconds(attention: model.Attention, x: Tensor, path: str, *, dtype: str, gradient: bool, clock: Any) -> float:
    model.attend = PATHS[path]
    with contextlib.nullcontext() if gradient else torch.inference_mode():
        start = clock()
        for _ in range(3):
            with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=dtype == "bf16"):
                out = attention(x)
            if gradient:
                out.float().sum().backward()
        if x.is_cuda:
            torch.cuda.synchronize()
        return (clock() - start) / 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=None, help="default: as many as torch takes")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a machine that others use as well")
    parser.add_argument("--dry-run", action="store_true", help="print, but keep no file under benchmarks/results")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    rows = []
    for tokens, width, heads, batch in CASES:
        attention = model.Attention(ViTConfig(embed_dim=width, num_heads=heads)).to(options.device)
        x = torch.randn(batch, tokens, width, device=options.device, requires_grad=True)
        for dtype, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            for gradient in (True, False):
                times: dict[str, list[float]] = {path: [] for path in PATHS}
                for number in range(options.rounds + 1):
                    for path in PATHS if number % 2 else reversed(PATHS):
                        once = seconds(attention, x, path, dtype=dtype, gradient=gradient, clock=CLOCKS[options.clock])
                        if number:  # the first round warms up
                            times[path].append(once)
                ratio = float(np.median(np.array(times["explicit"]) / np.array(times["sdpa"])))
                q = torch.randn(1, 1, 1, 8, device=options.device, dtype=kind)
                chosen = "sdpa" if CHOSEN(q, q, q)[1] is None else "explicit"
                rows.append(
                    {
                        "tokens": tokens,
                        "width": width,
                        "heads": heads,
                        "batch": batch,
                        "dtype": dtype,
                        "gradient": gradient,
                        "explicit_ms": round(1e3 * float(np.median(times["explicit"])), 3),
                        "sdpa_ms": round(1e3 * float(np.median(times["sdpa"])), 3),
                        "explicit_over_sdpa": round(ratio, 3),
                        "taken": chosen,
                    }
                )
                mark = "" if (chosen == "sdpa") == (ratio > 1) else "   <- the model takes " + chosen
                print(
                    f"{tokens:>4} tokens x {width}, {dtype}, {'training' if gradient else 'inference':<9}  "
                    f"explicit / sdpa {ratio:6.3f}{mark}",
                    flush=True,
                )
    if not options.dry_run:
        result = {"rows": rows, "rounds": options.rounds, "threads": torch.get_num_threads(), "clock": options.clock}
        name = "attention_paths" + ("" if options.device == "cpu" else f"_{options.device}")
        write_result(name, result | {"device": options.device, **describe()})


if __name__ == "__main__":
    main()
