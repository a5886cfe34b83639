"""python soup.py soup.safetensors A.safetensors B.safetensors...    Needs torch and safetensors.

Write the mean of the weights of several `export RUN`, a soup (Wortsman et al. 2022, arXiv:2203.05482): `predict`,
`evaluate` and `train --weights` take it as they take each of them. It helps runs that went the same way, such as seeds
that fine-tuned the same weights from one probe; score it on validation images before you keep it.
"""

import json
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

target, *files = sys.argv[1:]
states, facts = [], []
for file in files:
    with safe_open(file, "pt") as opened:
        states.append({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118  # no mapping
        # Not the hash of this file, nor what `evaluate` fitted to this network.
        facts.append({name: text for name, text in opened.metadata().items() if name not in ("sha256", "answers")})
    for name in ("config", "class_names", "image_spec"):
        if facts[-1].get(name) != facts[0].get(name):
            sys.exit(f"{file} and {files[0]} differ in their {name}, so they have no mean")
if any(name.endswith("running_mean") for name in states[0]):
    sys.exit("these networks have batch norms, whose statistics belong to the weights of one run")
if json.loads(facts[0]["config"])["model"]["weights"] == "none":
    sys.exit("these runs started from random weights, each from its own: the mean of such weights is noise")
mean = {
    name: torch.stack([state[name].double() for state in states]).mean(dim=0).to(tensor.dtype)
    for name, tensor in states[0].items()
}
save_file(mean, target, metadata=facts[0])
print(f"{target}: the mean of {len(files)} networks")
