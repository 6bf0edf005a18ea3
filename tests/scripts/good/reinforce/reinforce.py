import argparse
import math
import random
from collections import deque

import torch
import torch.nn as nn
from torch.distributions import Categorical


class CartPole:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def reset(self):
        self.state = [self.rng.uniform(-0.05, 0.05) for _ in range(4)]
        self.t = 0
        return self.state

    def step(self, action):
        x, v, theta, omega = self.state
        force = 10.0 if action == 1 else -10.0
        temp = (force + 0.05 * omega**2 * math.sin(theta)) / 1.1
        alpha = (9.8 * math.sin(theta) - math.cos(theta) * temp) / (0.5 * (4 / 3 - 0.1 * math.cos(theta) ** 2 / 1.1))
        acc = temp - 0.05 * alpha * math.cos(theta) / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * acc, theta + 0.02 * omega, omega + 0.02 * alpha]
        self.t += 1
        done = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21 or self.t >= 200
        return self.state, 1.0, done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

    def act(self, state, device):
        probs = torch.softmax(self.net(torch.tensor(state, device=device)), dim=-1)
        dist = Categorical(probs)
        action = dist.sample()
        return action.item(), dist.log_prob(action)


def discounted(rewards, gamma):
    returns, total = deque(), 0.0
    for r in reversed(rewards):
        total = r + gamma * total
        returns.appendleft(total)
    returns = torch.tensor(returns)
    return (returns - returns.mean()) / (returns.std() + 1e-6)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--gamma", type=float, default=0.99)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    env, policy = CartPole(args.seed), Policy().to(device)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-2)
    running = 10.0
    for episode in range(args.episodes):
        state, done, log_probs, rewards = env.reset(), False, [], []
        while not done:
            action, log_prob = policy.act(state, device)
            state, reward, done = env.step(action)
            log_probs.append(log_prob)
            rewards.append(reward)
        loss = -(torch.stack(log_probs) * discounted(rewards, args.gamma).to(device)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = 0.95 * running + 0.05 * sum(rewards)
        if episode % 10 == 0:
            print(f"Episode {episode}\tLast reward: {sum(rewards):.2f}\tAverage reward: {running:.2f}", flush=True)
        if running > 190:
            break


if __name__ == "__main__":
    main()
