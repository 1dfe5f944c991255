"""What all guarantees share: a case, a subject and its traits, what ranks observed, and a verdict.

A group of guarantees is one folder beside this one:

1. ``subjects.py``: kinds of subjects that only this group checks, if it has any.
2. ``history.py``: its records of what ranks observe, subclasses of :class:`.history.Record`.
3. ``judge.py``: pure functions from histories to violations, with tests on hand-made
   histories in ``conformance/<group>/test_judge*.py``.
4. ``checks.py``: the ``Guarantee`` records, the recording that runs in every rank (see
   :mod:`.recording`), and the tuple ``CHECKS``.
5. ``mutants.py`` or ``mutants/``: a tuple ``MUTANTS`` with at least one for each guarantee, and a
   tuple ``BENIGN_VARIANTS``.

:mod:`.registry` has the list of groups, ``SPEC.md`` has an entry for each guarantee, with the
statement of its record.
"""
