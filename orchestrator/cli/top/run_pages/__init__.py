"""The pages about one run, in the order of their numbers."""

from orchestrator.cli.top.run_pages.base import OfRun
from orchestrator.cli.top.run_pages.curves import CurvesPage
from orchestrator.cli.top.run_pages.events import EventsPage
from orchestrator.cli.top.run_pages.log import LogPage
from orchestrator.cli.top.run_pages.overview import Overview
from orchestrator.cli.top.run_pages.step_times import StepTimesPage
from orchestrator.cli.top.run_pages.use import UsePage
from orchestrator.cli.top.run_pages.why import Why

__all__ = ["CurvesPage", "EventsPage", "LogPage", "OfRun", "Overview", "StepTimesPage", "UsePage", "Why"]
