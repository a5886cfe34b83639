"""Training steps of EfficientNet-Lite0 on a processor in bf16, with and without what `vit.convolutions` does.

    python -m benchmarks.convolutions [--threads 1] [--rounds 7]

Forward and backward of one batch, in turns: as timm builds the network, with the channels of an image side by side in
memory, and with depthwise convolutions in float32 as well; and all of it in float32. Processor time, medians over the
rounds, as ratios to the application's.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext

import numpy as np
import timm
import torch
from torch import nn

from benchmarks.environment import describe, write_result
from vit.convolutions import quick_on_processors

SIDES = (64, 96, 128, 224)
OURS = "application"


def ways() -> dict[str, nn.Module]:
    made = {name: timm.create_model("tf_efficientnet_lite0") for name in ("timm", "channels last", "float32", OURS)}
    made["channels last"].to(memory_format=torch.channels_last)
    for name in ("float32", OURS):
        quick_on_processors(made[name])
    return made


def seconds(model: nn.Module, images: torch.Tensor, *, bf16: bool) -> float:
    started = time.process_time()
    with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
        loss = model(images).float().square().mean()
    loss.backward()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--dry-run", action="store_true", help="print, but keep no file under benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    networks, rows = ways(), []
    for side in SIDES:
        images = torch.randn(options.images, 3, side, side)
        times: dict[str, list[float]] = {name: [] for name in networks}
        for number in range(options.rounds + 1):
            for name, model in networks.items():
                once = seconds(model, images, bf16=name != "float32")
                if number:  # the first round warms up
                    times[name].append(once)
        middle = {name: float(np.median(values)) for name, values in times.items()}
        ratios = {name: round(value / middle[OURS], 2) for name, value in middle.items()}
        rows.append({"side": side, "ms_per_image": round(1000 * middle[OURS] / options.images, 2), **ratios})
        print(rows[-1], flush=True)
    result = {"rows": rows, "rounds": options.rounds, "threads": options.threads, **describe("timm")}
    if not options.dry_run:
        write_result("convolutions", result)


if __name__ == "__main__":
    main()
