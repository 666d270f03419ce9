#!/usr/bin/python3
"""Starts Python programs of OpenStack without systemd, uwsgi and the scripts of packages.

launch.py script MODULE:FUNCTION [ARGUMENT...]            runs an entry point
launch.py wsgi HOST PORT MODULE:FUNCTION [ARGUMENT...]    serves a WSGI application by gunicorn,
                                                          in one process with eight threads
"""
import importlib
import os
import sys


def octavia_sockets():
    # octavia-lib expects the sockets in /var/run/octavia, and the OVN provider passes no
    # other place.
    d = os.environ.get('OCTAVIA_SOCKETS')
    try:
        from octavia_lib.api.drivers import driver_lib
    except ImportError:
        return
    driver_lib.DriverLibrary.__init__.__defaults__ = tuple(
        os.path.join(d, 'octavia-%s.sock' % x) for x in ('status', 'stats', 'get'))


def get(target):
    module, function = target.split(':')
    return getattr(importlib.import_module(module), function)


if sys.argv[1] == 'script':
    target = sys.argv[2]
    sys.argv = [target.split(':')[0]] + sys.argv[3:]
    if target.startswith('octavia.'):
        octavia_sockets()
    sys.exit(get(target)())

host, port, target = sys.argv[2:5]
# oslo.config parses sys.argv in the application, so only the application's arguments stay.
# The command line of gunicorn itself would break Keystone.
sys.argv = [target.split(':')[0]] + sys.argv[5:]

from gunicorn.app.base import BaseApplication  # noqa: E402


class Server(BaseApplication):
    def load_config(self):
        for k, v in dict(bind='%s:%s' % (host, port), workers=1, threads=8,
                         worker_class='gthread', proc_name=target, timeout=300,
                         keepalive=75, graceful_timeout=2).items():
            self.cfg.set(k, v)

    def load(self):
        if target.startswith('octavia.'):
            octavia_sockets()
        app = get(target)()
        if os.environ.get('LAB_NOAUTH'):
            import noauth
            app = noauth.filter_factory({})(app)
        return app


Server().run()
