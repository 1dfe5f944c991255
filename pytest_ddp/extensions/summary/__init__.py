"""What a pytest session found out, as a page.

- ``--ddp-report=FILE`` writes one HTML file at the end of a session: ``options.py`` has the option,
  ``session_report.py`` follows the session, ``report_page.py`` and ``terminal_html.py`` write.
- ``python -m pytest_ddp summary`` prints the result files of a session, finished or killed, as
  Markdown for the page of a CI job: ``command.py``, ``results.py``, ``markdown.py``.
"""
