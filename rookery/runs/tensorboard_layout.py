"""How TensorBoard's page of custom scalars is laid out: a few charts that tell how a run does.

Each has the curves of the metrics that match; a run without such metrics leaves it empty.
"""

from __future__ import annotations

from typing import Any

CHARTS = {
    "score": ("rollout/return_(mean|max)", "eval/return_(mean|max)"),
    "losses": ("train/loss", "train/(policy|value)_loss"),
    "data points a second": ("time/env_steps_per_s",),
    "active workers": ("fleet/(actors|workers)",),
    "staleness (updates)": ("train/(staleness|lag)_(min|mean|max)", "train/staleness"),
}
"""Titles, and patterns of the metrics' names."""


def layout_summary() -> Any:
    """The summary that TensorBoard reads it from."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    charts = [
        layout_pb2.Chart(
            title=title,
            multiline=layout_pb2.MultilineChartContent(tag=[f"^{each}$" for each in patterns]),
        )
        for title, patterns in CHARTS.items()
    ]
    layout = layout_pb2.Layout(category=[layout_pb2.Category(title="overview", chart=charts)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[layout.SerializeToString()])
    told = SummaryMetadata.FromString(metadata.create_summary_metadata().SerializeToString())
    summary = Summary()
    summary.value.add(tag=metadata.CONFIG_SUMMARY_TAG, metadata=told, tensor=tensor)
    return summary
