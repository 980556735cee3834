"""Validates and plans a request to run a job, and records it as a run. `orch submit` and the supervisor use this
package.
"""
