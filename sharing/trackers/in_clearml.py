"""ClearML: the server that clearml.conf or CLEARML_API_HOST names.

https://clear.ml/docs/latest/docs/references/sdk/task
"""

from clearml import Task

from sharing.replay import Replay


class ClearML:
    def has(self, replay: Replay) -> bool:
        return [task.comment for task in self.found(replay)] == [replay.content]

    def put(self, replay: Replay) -> None:
        for task in self.found(replay):
            task.delete()
        task = Task.create(replay.project, replay.name, task_type=Task.TaskTypes.training)
        task.add_tags([replay.id])
        task.mark_started()
        task.set_parameters({f"General/{name}": text for name, text in replay.settings.items()})
        logger = task.get_logger()
        for step, metrics in replay.steps.items():
            for name, value in metrics.items():
                logger.report_scalar(name, "run", value, step)
        for step, pictures in replay.pictures.items():
            for tag, path in pictures.items():
                logger.report_image("figures", tag, step, local_path=str(path))
        for name, value in replay.scores.items():
            logger.report_single_value(name, value)
        task.flush(wait_for_uploads=True)
        task.set_comment(replay.content)
        task.mark_completed()

    def found(self, replay: Replay) -> list[Task]:
        return Task.get_tasks(project_name=replay.project, tags=[replay.id], task_filter={"order_by": ["created"]})
