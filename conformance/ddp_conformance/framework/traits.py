"""What a subject may declare about itself.

Traits select the checks that apply, and the allowance of a judge. A guarantee group that needs
another capability adds it here, with its meaning.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

TRAITS: dict[str, str] = {
    "pads": "repeats less than one sample, or one batch of batch_size=, for each rank, so that all "
    "ranks get equally many",
    "drops": "leaves out less than one sample, or one batch of batch_size=, for each rank, so that "
    "all ranks get equally many",
    "dynamic_batches": "its batches have unlike numbers of samples, at most batch_size=, as with "
    "a budget of tokens; it pads or drops fewer batches than there are ranks",
    "exact": "delivers each sample exactly once",
    "replacement": "draws with replacement: chance decides how often a sample comes, and no two "
    "ranks have the same draws",
    "endless": "never ends: it goes through all samples again and again, in passes that the ranks "
    "share",
    "shuffles": "changes the order from epoch to epoch",
    "evaluates": "what it delivers is counted in a reported metric",
    "uneven": "its loop copes with a different number of batches on each rank (Join, or no "
    "collective for each batch)",
    "iterable": "reads a stream that it splits over ranks and workers by itself; the factory "
    "uses case.num_workers",
    "augments": "draws random numbers for each sample; the factory uses case.num_workers",
    "any_workers": "the factory passes case.worker_options to a DataLoader, and the data set can "
    "be pickled: workers may persist, and may be spawned",
    "fixed_validation": "its validation data stay the same in all epochs",
    "tells_rank": "its batches have the field origin: for each sample, the rank that its reader "
    "found for itself, and the worker; the factory uses case.num_workers and case.start_method",
    "scheduled": "schedule= gives the window on which each epoch must train",
    "tells_paths": "paths= gives the paths that it writes",
    "gpu": "needs a GPU for each rank; skipped where there are not enough of them",
    "once_per_node": "acts once on each machine, not once in all",
    "replaces": "its files hold the last record alone",
    "first_wins": "whichever rank finds no file writes it, and the others find it: behind a lock, "
    "or after a barrier",
    "published": "other ranks read its files as soon as their own call has returned",
    "decides": "reports what it decides in each step",
    "resumes": "saves a checkpoint after an epoch if its leg has save=, and at the steps of "
    "save_at=, and resumes from one",
    "resumes_mid_epoch": "does so in the middle of an epoch too",
    "resumes_elsewhere": "resumes on another number of ranks too, or refuses to on all of them",
    "global_batch": "its steps cover equally many samples whatever the number of ranks",
    "compiles": "its model is compiled by torch.compile",
    "falls_back": "takes another backend if there is no GPU",
    "accumulates": "each optimizer step has several backward passes",
    "reduces_once": "reduces each element of its gradients once in a step",
    "states_collectives": "collectives= is the most collectives that it makes in a step, or for a "
    "batch",
    "buffers": "training writes buffers of its model, such as batch statistics; make also returns "
    "how it is evaluated and saved",
    "sync_batchnorm": "its model normalises by statistics of the samples of all ranks, as "
    "SyncBatchNorm does, and keeps them in buffers called running_mean and running_var",
    "batch_statistics": "its model normalises by the samples of each rank alone, as BatchNorm does "
    "under DDP; reason= explains why that is intended",
    "unused_parameters": "some parameters get no gradient in some steps, or on some ranks",
    "nonlinear": "the metric is no mean over samples, such as F1, a root or a correlation",
}

CONTRADICTIONS: tuple[frozenset[str], ...] = (
    frozenset({"pads", "exact"}),
    frozenset({"drops", "exact"}),
    frozenset({"endless", "evaluates"}),
    frozenset({"endless", "exact"}),
    frozenset({"evaluates", "replacement"}),
    frozenset({"exact", "replacement"}),
)


def checked_traits(traits: Iterable[str], owner: str) -> frozenset[str]:
    """The traits as a set; raises ``ValueError`` for unknown or contradictory ones."""
    if isinstance(traits, str):
        raise ValueError(f"{owner}: traits is the string {traits!r}; write {{{traits!r}}}")
    given = frozenset(traits)
    for trait in sorted(given - TRAITS.keys()):
        close = difflib.get_close_matches(trait, TRAITS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(TRAITS))}"
        raise ValueError(f"{owner}: unknown trait {trait!r}; {hint}")
    for pair in CONTRADICTIONS:
        if pair <= given:
            raise ValueError(f"{owner}: traits {' and '.join(sorted(pair))} contradict each other")
    return given
