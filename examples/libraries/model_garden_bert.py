"""TF Model Garden: a small BERT with random weights sorts documents, in a trainer of orbit.

    python -m grace_tf run -np 2 examples/libraries/model_garden_bert.py

A document is of one of four topics; each topic draws its words with chances of its own.
"""

import math

import numpy as np
import orbit
import tensorflow as tf
import tf_keras
from comparison import Trained, compare
from official.nlp import optimization
from official.nlp.modeling import models, networks

import grace_tf

WORDS, LENGTH, TOPICS, STEPS, ROWS = 1000, 16, 4, 300, 16
START = 0  # the first token of every document, from which BERT tells the topic


def documents(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Token numbers [count, LENGTH], and topics."""
    draw = np.random.default_rng(0)
    chances = draw.dirichlet(np.full(WORDS - 1, 0.5), size=TOPICS)
    topics = draw.integers(TOPICS, size=count)
    words = [1 + draw.choice(WORDS - 1, LENGTH, p=chances[topic]) for topic in topics]
    words = np.array(words, "int32")
    words[:, 0] = START
    return words, topics.astype("int32")


def inputs(words):
    """What the Garden's encoders take."""
    return {
        "input_word_ids": words,
        "input_mask": tf.ones_like(words),
        "input_type_ids": tf.zeros_like(words),
    }


class Trainer(orbit.StandardTrainer):
    def __init__(self, dataset, model, optimizer):
        super().__init__(dataset)
        self.model, self.optimizer = model, optimizer
        self.global_step = orbit.utils.create_global_step()
        self.loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.seen = tf_keras.metrics.Mean("loss")

    def train_loop_begin(self):
        self.seen.reset_states()

    def train_step(self, iterator):
        def step(words, topics):
            with tf.GradientTape() as tape:
                loss = self.loss(topics, self.model(inputs(words), training=True))
            variables = self.model.trainable_variables
            grads = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(grads, variables))
            self.seen.update_state(loss)
            self.global_step.assign_add(1)

        tf.distribute.get_strategy().run(step, args=next(iterator))

    def train_loop_end(self):
        return {"loss": self.seen.result()}


def train(method: str, seed: int) -> Trained:
    tf_keras.utils.set_random_seed(2 * seed + grace_tf.rank())
    words, topics = documents(4096)
    data = grace_tf.shard(tf.data.Dataset.from_tensor_slices((words[512:], topics[512:])))

    encoder = networks.BertEncoder(
        WORDS,
        hidden_size=64,
        num_layers=2,
        num_attention_heads=4,
        max_sequence_length=LENGTH,
        inner_dim=128,
        dict_outputs=True,
    )
    model = models.BertClassifier(encoder, num_classes=TOPICS)
    optimizer = optimization.create_optimizer(1e-3, STEPS, STEPS // 10)  # the Garden's own AdamW
    optimizer = grace_tf.wrap(optimizer, method)
    batches = data.shuffle(5000).repeat().batch(ROWS)
    trainer = Trainer(batches, model, optimizer)
    controller = orbit.Controller(
        trainer=trainer, global_step=trainer.global_step, steps_per_loop=STEPS // 4
    )
    controller.train(steps=STEPS)

    loss = float(trainer.loss(topics[:512], model(inputs(tf.constant(words[:512])))))
    sent = grace_tf.keras.aggregator_of(optimizer).bytes_per_step
    return Trained(loss, math.log(TOPICS), model.trainable_variables, sent)


if __name__ == "__main__":
    compare(train, "TF Model Garden: a BERT, crossentropy of topics")
