import argparse

import jax
import jax.numpy as jnp
import optax
from tqdm import trange

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--width", type=int, default=32)
args = parser.parse_args()


def init(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    return [(jax.random.normal(k, (m, n)) / jnp.sqrt(m), jnp.zeros(n)) for k, m, n in zip(keys, sizes[:-1], sizes[1:])]


def forward(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss_fn(params, x, y):
    return jnp.mean((forward(params, x) - y) ** 2)


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
params = init(jax.random.PRNGKey(0), [4, args.width, args.width, 1])
opt_state = optimizer.init(params)


@jax.jit
def train_step(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


key = jax.random.PRNGKey(1)
bar = trange(args.steps, desc="training")
for step in bar:
    key, sub = jax.random.split(key)
    x = jax.random.normal(sub, (32, 4))
    y = jnp.sin(x).sum(1, keepdims=True)
    params, opt_state, loss = train_step(params, opt_state, x, y)
    if step % 50 == 0:
        bar.set_postfix(loss=float(loss))
print("final loss", float(loss))
