"""Steps/s of a plain PPO loop with CleanRL's Atari settings: `atari_plain.py --secs 60`.

Written for this benchmark, as a reader of PPO would write it: one process, gymnasium's
SyncVectorEnv of 8 with its wrappers, 128 steps, 4 epochs of 4 minibatches, Adam, clipped values,
gradients clipped to a norm of 0.5. Prints one JSON line.
"""

from __future__ import annotations

import argparse

import torch
from atari_wrapped import make_pong
from gymnasium.vector import SyncVectorEnv
from step_clock import StepClock
from torch import Tensor, nn

NUM_ENVS, NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES = 8, 128, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, MAX_NORM = 0.99, 0.95, 0.1, 0.01, 0.5, 0.5
LR = 2.5e-4


class Agent(nn.Module):
    """The Nature network with a policy and a value on top."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.torso = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        )  # fmt: skip
        self.policy = nn.Linear(512, num_actions)
        self.value = nn.Linear(512, 1)

    def forward(self, images: Tensor) -> tuple[torch.distributions.Categorical, Tensor]:
        """``images`` ``[N, 4, 84, 84]`` as uint8 to a distribution and values ``[N]``."""
        hidden = self.torso(images / 255.0)
        policy = torch.distributions.Categorical(logits=self.policy(hidden))
        return policy, self.value(hidden).squeeze(-1)


class Storage:
    """One rollout, ``[T, B, ...]``."""

    def __init__(self) -> None:
        shape = (NUM_STEPS, NUM_ENVS)
        self.images = torch.zeros((*shape, 4, 84, 84), dtype=torch.uint8)
        self.actions = torch.zeros(shape, dtype=torch.int64)
        self.log_probs, self.values, self.rewards, self.ends = torch.zeros((4, *shape))


def collect(agent: Agent, envs: SyncVectorEnv, image: Tensor, end: Tensor, into: Storage) -> Tensor:
    """Fill ``into``; the advantages of its steps. ``image`` and ``end`` move on in place."""
    with torch.no_grad():
        for t in range(NUM_STEPS):
            into.images[t], into.ends[t] = image, end
            policy, into.values[t] = agent(image)
            into.actions[t] = policy.sample()
            into.log_probs[t] = policy.log_prob(into.actions[t])
            obs, reward, ended, cut, _ = envs.step(into.actions[t].numpy())
            into.rewards[t] = torch.as_tensor(reward, dtype=torch.float32)
            image.copy_(torch.from_numpy(obs))
            end.copy_(torch.from_numpy(ended | cut))
        next_value, next_end = agent(image)[1], end
        advantages, advantage = torch.zeros_like(into.rewards), torch.zeros(NUM_ENVS)
        for t in reversed(range(NUM_STEPS)):
            goes_on = 1.0 - next_end
            error = into.rewards[t] + GAMMA * goes_on * next_value - into.values[t]
            advantage = error + GAMMA * LAMBDA * goes_on * advantage
            advantages[t] = advantage
            next_value, next_end = into.values[t], into.ends[t]
    return advantages


def learn(agent: Agent, optimizer: torch.optim.Adam, made: Storage, advantages: Tensor) -> None:
    """All epochs over one rollout."""
    images, actions, log_probs, values, gains = (
        leaf.flatten(0, 1)
        for leaf in (made.images, made.actions, made.log_probs, made.values, advantages)
    )
    targets = gains + values
    for _ in range(NUM_EPOCHS):
        for index in torch.randperm(len(actions)).chunk(NUM_MINIBATCHES):
            policy, value = agent(images[index])
            ratio = (policy.log_prob(actions[index]) - log_probs[index]).exp()
            gain = gains[index]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            actor = torch.max(-gain * ratio, -gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            near = values[index] + (value - values[index]).clamp(-CLIP, CLIP)
            errors = [(guess - targets[index]).square() for guess in (value, near)]
            critic = 0.5 * torch.max(*errors).mean()
            loss = actor + VALUE * critic - ENTROPY * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_NORM)
            optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    envs = SyncVectorEnv([make_pong] * NUM_ENVS)
    agent = Agent(int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=LR, eps=1e-5)
    image, end = torch.from_numpy(envs.reset(seed=1)[0]).clone(), torch.zeros(NUM_ENVS)
    storage, clock, steps = Storage(), StepClock(args.secs), 0
    while not clock.over:
        learn(agent, optimizer, storage, collect(agent, envs, image, end, storage))
        steps += NUM_STEPS * NUM_ENVS
        clock.note(steps)
    clock.report()


if __name__ == "__main__":
    main()
