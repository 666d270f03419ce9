"""WSGI filter for Neutron and Octavia without Keystone.

A request without headers is that of an admin of one project. X-User-Id, X-Project-Id and
X-Roles of a client are believed, so that quotas, policies and several projects can be
tested. It authenticates nobody: it is for tests on loopback.
"""


def filter_factory(global_conf, **local_conf):
    def wrap(app):
        def call(env, start):
            if 'HTTP_X_USER_ID' not in env:
                env['HTTP_X_USER_ID'] = 'lab-admin'
                env.setdefault('HTTP_X_ROLES', 'admin,member,reader')
            env.setdefault('HTTP_X_ROLES', 'member,reader')
            env.setdefault('HTTP_X_PROJECT_ID', '00000000000000000000000000000001')
            # Octavia passes the caller's token on to Neutron, and gives up without one.
            env.setdefault('HTTP_X_AUTH_TOKEN', 'none')
            return app(env, start)
        return call
    return wrap
