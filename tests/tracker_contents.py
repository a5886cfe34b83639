"""A tracker's store read back by its own means, as JSON: `tracker_contents.py NAME ID...` beside the store."""

import json
import struct
import sys
from collections import defaultdict
from pathlib import Path


def mlflow(ids):
    from mlflow.tracking import MlflowClient

    client, found = MlflowClient(), defaultdict(list)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in client.search_runs(experiments):
        steps, scores, pictures = defaultdict(dict), {}, 0
        for name, value in run.data.metrics.items():
            if is_score(name):
                scores[name] = value
                continue
            for metric in client.get_metric_history(run.info.run_id, name):
                steps[metric.step][name] = metric.value
        for folder in client.list_artifacts(run.info.run_id, "figures"):
            pictures += len(client.list_artifacts(run.info.run_id, folder.path))
        found[run.data.tags["vit_train.run"]].append(content(steps, scores, pictures, dict(run.data.params)))
    return found


def wandb(ids):
    from wandb.proto import wandb_internal_pb2 as proto

    found = defaultdict(list)
    for path in Path("wandb").glob("offline-run-*/*.wandb"):
        steps, summary, settings, pictures = defaultdict(dict), {}, {}, 0
        for data in records(path.read_bytes()):
            record = proto.Record.FromString(data)
            rows = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            if rows:
                step = rows.pop("_step")
                pictures += sum(name.endswith("/_type") or isinstance(value, dict) for name, value in rows.items())
                for name, value in rows.items():
                    if not isinstance(value, dict) and "/" not in name and not name.startswith("_"):
                        steps[step][name] = value
            for item in record.summary.update:
                summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
            for item in record.run.config.update:
                settings[item.key] = json.loads(item.value_json)
        settings.pop("_wandb", None)
        run_id = path.stem.removeprefix("run-")
        found[run_id].append(content(steps, {k: v for k, v in summary.items() if is_score(k)}, pictures, settings))
    return found


def records(data: bytes):
    """The records of a log in LevelDB's format, which wandb writes after seven bytes of its own."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def trackio(ids):
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    found = defaultdict(list)
    for project in SQLiteStorage.get_projects():
        for run in trackio.Api().runs(project):
            steps, scores, pictures = defaultdict(dict), {}, 0
            for row in SQLiteStorage.get_logs(project, run.name, run_id=run.id):
                step = row.pop("step")
                row.pop("timestamp", None)
                for name, value in row.items():
                    if isinstance(value, dict):
                        pictures += 1
                    elif is_score(name):
                        scores[name] = value
                    else:
                        steps[step][name] = value
            settings = {k: v for k, v in run.config.items() if k != "shared.content" and not k.startswith("_")}
            found[run.name.split()[-1]].append(content(steps, scores, pictures, settings))
    return found


def is_score(name):
    return name.startswith(("best_", "test_", "total_", "ViT_1")) or name in ("parameters", "trainable")


def content(steps, scores, pictures, settings):
    return {"steps": steps, "scores": scores, "pictures": pictures, "settings": settings}


if __name__ == "__main__":
    tracker, *ids = sys.argv[1:]
    found = {"mlflow": mlflow, "wandb": wandb, "trackio": trackio}[tracker](ids)
    assert set(found) == set(ids), (set(found), set(ids))
    print("\n" + json.dumps(found))
