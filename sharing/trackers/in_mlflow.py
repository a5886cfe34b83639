"""MLflow: the store that MLFLOW_TRACKING_URI names, else the one of the working directory.

https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html
"""

import time

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from sharing.replay import Replay

RUN, CONTENT = "vit_train.run", "vit_train.content"
"""Tags: which run this is, and, once it is whole, which state of it."""


class MLflow:
    def __init__(self) -> None:
        self.client = MlflowClient()

    def has(self, replay: Replay) -> bool:
        return [run.data.tags.get(CONTENT) for run in self.found(replay)] == [replay.content]

    def put(self, replay: Replay) -> None:
        for run in self.found(replay):
            self.client.delete_run(run.info.run_id)
        run_id = self.client.create_run(
            self.experiment(replay), run_name=replay.name, tags={RUN: replay.id}
        ).info.run_id
        now, last = int(time.time() * 1000), replay.last_step
        metrics = [
            Metric(name, value, now, step) for step, found in replay.steps.items() for name, value in found.items()
        ]
        metrics += [Metric(name, value, now, last) for name, value in replay.scores.items()]
        settings = [Param(name, text) for name, text in replay.settings.items()]
        for start in range(0, len(metrics), 1000):  # the most that one call takes, and below 100 parameters
            self.client.log_batch(run_id, metrics=metrics[start : start + 1000])
        for start in range(0, len(settings), 100):
            self.client.log_batch(run_id, params=settings[start : start + 100])
        for step, pictures in replay.pictures.items():
            for path in pictures.values():
                self.client.log_artifact(run_id, str(path), f"figures/step_{step}")
        self.client.log_batch(run_id, tags=[RunTag(CONTENT, replay.content)])
        self.client.set_terminated(run_id)

    def found(self, replay: Replay) -> list:
        return list(self.client.search_runs([self.experiment(replay)], f"tags.`{RUN}` = '{replay.id}'"))

    def experiment(self, replay: Replay) -> str:
        known = self.client.get_experiment_by_name(replay.project)
        return str(known.experiment_id if known else self.client.create_experiment(replay.project))
