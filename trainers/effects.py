"""Options that are given but change nothing in this run. No torch here; each rule is one line of a table."""

from trainers.config import RunConfig


def without_effect(config: RunConfig, *, steps_per_epoch: int) -> list[str]:
    """One line for every option of a resolved configuration that has no effect, with the reason."""
    model, data, train = config.model, config.data, config.train
    epochs = train.epochs or 0
    steps = epochs * steps_per_epoch
    frozen = model.trainable == "head"
    only_head = "only the head trains, and it has one layer"
    eval_mode = "the frozen backbone stays in evaluation mode"
    drawn = "the split comes from --split"
    rules: list[tuple[bool, str, str]] = [
        (train.layer_decay != 1 and frozen, "--layer-decay", only_head),
        (train.optimizer == "muon" and frozen, "--optimizer muon", only_head),
        (train.checkpoint_activations and frozen, "--checkpoint-activations", "no block trains"),
        (train.compile and train.cache_features == "on", "--compile", "the backbone runs once per image"),
        (model.dropout > 0 and frozen, "--dropout", eval_mode),
        (model.attention_dropout > 0 and frozen, "--attention-dropout", eval_mode),
        (model.stochastic_depth > 0 and frozen, "--stochastic-depth", eval_mode),
        (bool(train.mixup) and data.batch_size == 1, "--mixup", "a batch of one image has nothing to mix with"),
        (bool(train.cutmix) and data.batch_size == 1, "--cutmix", "a batch of one image has nothing to mix with"),
        (train.patience >= epochs > 0, "--patience", f"the run has {epochs} epochs"),
        ((train.save_every or 0) >= steps_per_epoch, "--save-every", f"an epoch has {steps_per_epoch} steps"),
        ((train.log_every or 0) > steps, "--log-every", f"the run has {steps} steps"),
        (model.weights == "none" and model.weights_source is not None, "--weights-source", "no weights are loaded"),
        (data.split is not None and data.split_seed != 0, "--split-seed", drawn),
        (data.split is not None and data.val_fraction is not None, "--val-fraction", drawn),
        (data.split is not None and data.test_fraction is not None, "--test-fraction", drawn),
    ]
    return [f"{option} has no effect: {reason}" for holds, option, reason in rules if holds]
