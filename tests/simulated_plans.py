"""A clock that a test moves; networks at known prices, and a machine on which the runs of a plan move the clock."""

from types import SimpleNamespace

from datasets.open import OpenedImages
from trainers.budget import ensemble, planned_run
from trainers.budget.networks import Price, Priced
from trainers.budget.plan import best_in
from trainers.budget.planned_run import Budget
from trainers.config import OutputConfig, RunConfig
from vit.config import Network

VIT, LARGE_VIT = Network("vit_stem_16", 64), Network("vit_stem_16", 128)
LITE0, LARGE_LITE0 = (Network("efficientnet_lite0", size, stages=True) for size in (128, 224))
PRICES = {
    VIT: Price(0.02, 0.02, 2.7e8, 192),
    LARGE_VIT: Price(0.05, 0.05, 1.1e9, 192),
    LITE0: Price(0.04, 0.04, 2.5e8, 2088),
    LARGE_LITE0: Price(0.1, 0.1, 7.7e8, 2088),
}


def priced(networks=tuple(PRICES), *, train=800, side=100):
    """Those networks for so many training images and 200 others."""
    prices = {network: PRICES[network] for network in networks}
    return Priced(prices, {"train": train, "val": 50, "test": 150}, side, 100)


class Clock:
    """One that only a test moves."""

    now = 0.0

    def move(self, seconds):
        self.now += seconds


class Machine:
    """Runs take `slower` times as long as priced; trained ones end at their deadline."""

    def __init__(self, monkeypatch, networks, *, seconds, slower=1.0, accuracy=None, fixed=0.0):
        self.now, self.slower, self.fixed, self.networks = 0.0, slower, fixed, networks
        self.accuracy = accuracy or {network.name: 0.8 for network in networks.prices}
        self.budget = Budget(seconds / 60, seconds)
        self.runs, self.said, self.parts = [], [], {}
        monkeypatch.setattr(planned_run, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(Priced, "compute", self.compute)
        monkeypatch.setattr(ensemble, "priced", lambda *options, rehearsed: networks)
        monkeypatch.setattr(ensemble, "with_deadline", lambda config, passes, until, most: (config, [until]))
        monkeypatch.setattr(ensemble, "network_of", lambda result: Network("trained", 64, weights=str(len(self.runs))))
        monkeypatch.setattr(ensemble.console, "say", lambda line, **options: self.said.append(line))

    def says(self, words):
        return any(words in line for line in self.said)

    def compute(self, network, split):
        self.now += self.fixed + self.slower * self.networks.sizes[split] * self.networks.a_pass([network])

    def start(self, config, handlers):
        self.runs.append(config)
        if handlers:
            self.now = max(self.now, handlers[0])
        else:
            frozen = [network for network in config.model.networks if not network.weights]
            self.now += self.slower * (2 + 1.2 * self.networks.fitting(frozen))
            if config.output.tb != "scalars":
                self.now += self.slower * (4.5 + 360 * self.networks.a_pass(frozen))
            scores = {"low": 0, "high": 1, "loss": 0.5}
            self.parts = {
                str(network): {"cross-validation": scores | {"accuracy": self.accuracy[network.name]}}
                for network in frozen
            }
        val = {"accuracy": 0.8, "loss": 0.5}
        folder = SimpleNamespace(heads=self.parts)
        return SimpleNamespace(run_dir=OutputConfig().output_dir, val=val, images={"val": 50}, folder=folder)

    def plan(self, **output):
        return best_in(self.budget, RunConfig().changed(output=output), self.start, opened=OpenedImages())
