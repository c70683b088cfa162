"""Names of settings in other libraries and programs, and what they are called here.

From Stable-Baselines3, CleanRL, RLlib, Sample Factory and Acme, and from the programs that Rookery
takes the place of. ``{algo}`` is the algorithm's block; of several, the first that the run has.
"""

from __future__ import annotations

_FOREIGN: dict[str, tuple[str, ...]] = {
    # how long, how many, where
    "total_timesteps timesteps num_timesteps max_steps total_env_steps train_for_env_steps "
    "iterations num_env_steps": ("steps",),
    "n_envs num_envs num_environments num_envs_per_worker num_envs_per_env_runner "
    "envs_per_worker simulator_procs": ("envs",),
    "num_workers num_env_runners num_rollout_workers num_actors n_actors world_size n_workers": (
        "actors",
    ),
    "cuda gpu gpus gpu_ids num_gpus": ("device",),
    "max_time time_limit_s train_for_seconds": ("time_limit",),
    "early_stopping stop_when_solved target_reward stop_reward reward_threshold": ("stop_at",),
    "random_seed": ("seed",),
    # the learning rate and the optimizer
    "learning_rate alpha step_size lr_rate": ("lr",),
    "anneal_lr lr_schedule linear_schedule": ("optimizer.lr",),
    "adam_eps opt_eps optimizer_eps": ("optimizer.eps",),
    "max_grad_norm grad_clip clip_grad clip_grad_norm gradient_clip max_gradient_norm": (
        "optimizer.max_grad_norm",
    ),
    "optimizer optim": ("optimizer.name",),
    "beta1 beta2": ("optimizer.betas",),
    # algorithms that learn from rollouts
    "discount discount_factor": ("gamma",),
    "n_steps num_steps rollout rollout_length rollout_len rollout_fragment_length horizon "
    "unroll_length steps_in_replay local_time_max": ("{algo}.rollout_steps",),
    "replays_in_batch": ("{algo}.rollouts_per_update",),
    "n_epochs update_epochs num_sgd_iter epochs ppo_epochs ppo_iters opt_epochs": (
        "{algo}.num_epochs",
    ),
    "batch_size minibatch_size sgd_minibatch_size nminibatches mini_batch_size": (
        "{algo}.batch_size",
        "{algo}.num_minibatches",
    ),
    "lambda lam lambda_ gae_lam": ("{algo}.gae_lambda",),
    "tau": ("{algo}.target_tau", "{algo}.gae_lambda"),
    "ent_coef entropy_coeff entropy_coefficient entropy_cost entropy_beta exploration_loss_coeff": (
        "{algo}.entropy_coef",
    ),
    "vf_coef vf_loss_coeff value_loss_coeff value_coefficient baseline_cost critic_coef": (
        "{algo}.value_coef",
    ),
    "clip_range clip_coef clip_param clip_ratio ppo_clip ppo_clip_ratio cliprange": (
        "{algo}.clip",
    ),
    "clip_range_vf clip_vloss vf_clip_param": ("{algo}.clip_value",),
    "norm_adv": ("{algo}.normalize_advantage",),
    "normalize_rewards norm_reward": ("{algo}.normalize_reward",),
    # algorithms that learn from replay
    "buffer_size replay_size memory_size replay_capacity replay_buffer_size capacity "
    "replay_memory_size": ("{algo}.capacity_steps",),
    "train_freq train_frequency training_interval gradient_steps update_freq sgd_period": (
        "{algo}.steps_per_update",
    ),
    "target_update_interval target_network_frequency target_update target_update_freq "
    "target_network_update_freq target_update_period copy_target": ("{algo}.target_every",),
    "start_timesteps min_replay_size burnin warmup_steps "
    "num_steps_sampled_before_learning_starts": ("{algo}.learning_starts",),
    "exploration_fraction exploration_initial_eps start_e eps_start epsilon_start": (
        "{algo}.epsilon.start",
    ),
    "exploration_final_eps end_e eps_end epsilon_end epsilon_final": ("{algo}.epsilon.end",),
    "eps_decay epsilon_decay epsilon_timesteps": ("{algo}.epsilon.steps",),
    "double_q double_dqn": ("{algo}.double",),
    "prioritized_replay_alpha priority_alpha per_alpha": ("{algo}.priority_exponent",),
    "prioritized_replay_beta priority_beta per_beta": ("{algo}.importance",),
    "nstep multi_step n_step_return": ("{algo}.n_step",),
    # the network and the environment
    "net_arch fcnet_hiddens hidden_dims hidden_sizes hidden_dim layers fc_neurons hidden_size": (
        "policy.hidden",
    ),
    "activation_fn fcnet_activation": ("policy.activation",),
    "use_lstm use_rnn rnn_type lstm": ("policy.core",),
    "lstm_cell_size rnn_size lstm_hidden_size": ("policy.core_size",),
    "log_std_init": ("policy.log_std_init",),
    "model policy_type": ("policy.torso",),
    "normalize_input norm_obs obs_norm normalize": ("policy.normalize_obs",),
    "env_config env_kwargs": ("env.kwargs",),
    "max_episode_length max_ep_len time_limit_steps max_episode_steps": ("env.max_episode_steps",),
    "frame_stack framestack num_stack env_framestack": ("stack_frames",),
    "frame_skip frameskip env_frameskip": ("env.atari.frame_skip",),
    # what is written
    "log_interval log_freq tb_log_name record_interval": ("log_every",),
    "save_interval save_freq checkpoint_freq checkpoint_frequency save_model_freq": ("save_every",),
    "eval_freq evaluation_interval eval_interval eval_frequency": ("eval_every",),
    "n_eval_episodes num_eval_episodes evaluation_duration eval_episodes num_episodes": (
        "eval.episodes",
    ),
    "tensorboard tensorboard_log tensorboard_logger track wandb use_wandb wandb_project_name": (
        "metrics.sinks",
    ),
    "exp_name experiment run_name experiment_name": ("name",),
    "log_dir logdir save_dir output_dir out_dir save_model_dir train_dir local_dir": ("run",),
    "load load_model restore src load_model_dir load_checkpoint": ("init_from",),
}

KNOWN = {name: ours for names, ours in _FOREIGN.items() for name in names.split()}


def own_names(foreign: str, algo: str) -> tuple[str, ...]:
    """What a setting that others call ``foreign`` may be called here, for algorithm ``algo``."""
    name = foreign.lower().replace("-", "_").rpartition(".")[2]
    return tuple(ours.format(algo=algo) for ours in KNOWN.get(name, ()))
