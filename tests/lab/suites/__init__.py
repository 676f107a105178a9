"""The end-to-end suites; `lab.e2e` lists them. Each has `run_cases(cases, work)`."""
