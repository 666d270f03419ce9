#!/usr/bin/python3
"""kssetup.py KEYSTONE_V3_URL PASSWORD REGION NEUTRON_URL OCTAVIA_URL|-: idempotent roles, projects,
users, catalogue.  Standard library only."""
import json
import sys
import urllib.request
KS, PW, REGION, NEUTRON, OCTAVIA = sys.argv[1:6]
H = {'Content-Type': 'application/json'}


def call(m, p, b=None):
    r = urllib.request.Request(KS + p, method=m, headers=H,
                               data=None if b is None else json.dumps(b).encode())
    with urllib.request.urlopen(r, timeout=60) as f:
        d = f.read()
        return f.headers, (json.loads(d) if d else None)


def ensure(coll, one, name, **kw):
    for x in call('GET', '/%s?name=%s' % (coll, name))[1][coll]:
        return x['id']
    return call('POST', '/' + coll, {one: dict(name=name, **kw)})[1][one]['id']


hd, _ = call('POST', '/auth/tokens', {'auth': {
    'identity': {'methods': ['password'], 'password': {'user': {
        'name': 'admin', 'domain': {'id': 'default'}, 'password': PW}}},
    'scope': {'project': {'name': 'admin', 'domain': {'id': 'default'}}}}})
H['X-Auth-Token'] = hd['X-Subject-Token']
role = {r: ensure('roles', 'role', r) for r in
        ('admin', 'member', 'reader', 'load-balancer_member', 'load-balancer_admin')}
for project, user, roles in (('service', 'neutron', ('admin',)), ('service', 'octavia', ('admin',)),
                             ('k8s', 'fairlead', ('admin', 'member', 'load-balancer_member')),
                             ('member', 'member', ('member', 'load-balancer_member'))):
    p = ensure('projects', 'project', project, domain_id='default')
    u = ensure('users', 'user', user, domain_id='default', password=PW)
    for r in roles:
        call('PUT', '/projects/%s/users/%s/roles/%s' % (p, u, role[r]))
have = {(e['service_id'], e['interface']) for e in call('GET', '/endpoints')[1]['endpoints']}
for name, typ, url in (('neutron', 'network', NEUTRON), ('octavia', 'load-balancer', OCTAVIA)):
    if url == '-':
        continue
    s = ensure('services', 'service', name, type=typ)
    for i in ('public', 'internal', 'admin'):
        if (s, i) not in have:
            call('POST', '/endpoints', {'endpoint': {
                'service_id': s, 'interface': i, 'region_id': REGION, 'url': url}})
