"""TF Model Garden: its image classification task and trainer, under orbit, on digits.

python -m grace_tf run -np 2 examples/libraries/model_garden_resnet.py
"""

import math

import numpy as np
import orbit
import tensorflow as tf
import tf_keras
from comparison import Trained, compare
from official.core import base_trainer, exp_factory
from official.modeling import optimization
from official.vision.tasks import image_classification
from sklearn.datasets import load_digits

import grace_tf

STEPS = 160


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 32, 32, 3] from -1 to 1, and their digits."""
    images, labels = load_digits(return_X_y=True)
    images = np.kron(images.reshape(-1, 8, 8) / 8 - 1, np.ones((4, 4)))
    return np.repeat(images[..., None], 3, axis=-1).astype("float32"), labels.astype("int32")


class Digits(image_classification.ImageClassificationTask):
    def build_inputs(self, params, input_context=None):
        x, y = digits()
        part = slice(360, None) if params.is_training else slice(0, 360)
        dataset = tf.data.Dataset.from_tensor_slices((x[part], y[part]))
        if params.is_training:
            dataset = grace_tf.shard(dataset).shuffle(2000).repeat()
        return dataset.batch(params.global_batch_size, drop_remainder=params.is_training)


def experiment():
    """The Garden's experiment for a ResNet on ImageNet, made small."""
    config = exp_factory.get_exp_config("resnet_imagenet")
    model = config.task.model
    model.num_classes, model.input_size = 10, [32, 32, 3]
    model.backbone.resnet.model_id, model.backbone.resnet.depth_multiplier = 10, 0.5
    model.norm_activation.norm_momentum = 0.9
    config.task.losses.l2_weight_decay = 0.0  # the Garden adds it to the loss of validation too
    config.task.train_data.global_batch_size = 16  # of one worker
    config.task.validation_data.global_batch_size = 120
    rate = {"initial_learning_rate": 0.05, "decay_steps": STEPS}
    config.trainer.optimizer_config = optimization.OptimizationConfig(
        {
            "optimizer": {"type": "sgd", "sgd": {"momentum": 0.9}},
            "learning_rate": {"type": "cosine", "cosine": rate},
        }
    )
    return config


def train(method: str, seed: int) -> Trained:
    tf_keras.utils.set_random_seed(2 * seed + grace_tf.rank())
    config = experiment()
    task = Digits(config.task)
    optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
    trainer = base_trainer.Trainer(
        config, task, task.build_model(), grace_tf.wrap(optimizer, method)
    )
    controller = orbit.Controller(
        trainer=trainer,
        evaluator=trainer,
        global_step=trainer.global_step,
        steps_per_loop=STEPS // 4,
    )
    controller.train(steps=STEPS)

    # BatchNormalization's statistics are each worker's own in a loop that is not Keras' fit.
    grace_tf.broadcast(trainer.model.variables)
    loss = float(controller.evaluate(steps=3)["validation_loss"])
    sent = grace_tf.keras.aggregator_of(optimizer).bytes_per_step
    return Trained(loss, math.log(10), trainer.model.trainable_variables, sent)


if __name__ == "__main__":
    compare(train, "TF Model Garden: a ResNet-10, crossentropy of digits")
