"""Stands for a module that Python has on macOS only: the proxies of the system's settings, of which there are none."""

_get_proxies = _get_proxy_settings = dict
