"""The system that each checked part belongs to: one of the reference, or a library."""

from __future__ import annotations

import re

from ddp_conformance.framework.subjects import Subject

REFERENCE = {
    "cache": ("latent_cache", "latent_cache_from_file"),
    "resnet": (
        *("image_data", "image_eval_batches", "image_train_sampler", "PublishedIndex"),
        *("resized_images", "resnet_agreement", "resnet_guard", "resnet_text_log"),
        *("resnet_training", "sample_mean", "stage_metrics", "TensorBoard"),
    ),
    "saliency": (
        *("hdf5_train", "hdf5_val", "hdf5_with_workers"),
        *("saliency_train", "saliency_val", "saliency_validation"),
    ),
    "training": (
        *("consistency_compiled_before_ddp", "diffusion_fsdp2", "operator_ddp"),
        *("operator_ddp_accumulating", "operator_fsdp2_accumulating", "operator_tp"),
        *("operator_fsdp2_tp_accumulating", "prior_compiled_after_fsdp2"),
        *("prior_fsdp1", "train_diffusion", "train_sharded", "train_split"),
    ),
    "windows": (
        *("both_resampled", "random_windows", "sliding_windows", "window_data"),
        *("window_loader", "windows_guard", "windows_validation", "WindowsLog"),
    ),
    "lightning": ("lightning_fit",),
}
"""The names of the parts by system of ``ddp_reference``; and a part of Lightning itself."""

_SYSTEMS = {part: system for system, parts in REFERENCE.items() for part in parts}
_LIBRARY = re.compile(r"conformance/ecosystem/(?:\w+/)?test_(\w+)\.py")


def system_of(nodeid: str, subject: Subject) -> str:
    """Empty for a part of no system."""
    library = _LIBRARY.match(nodeid)
    return library[1] if library is not None else _SYSTEMS.get(subject.name, "")
