package cloudtest

import (
	"net/http"
	"strings"
)

// quotasOf returns the limits of a project, which begin as Neutron's defaults.
func (s *Server) quotasOf(project string) map[string]int {
	if s.quotas[project] == nil {
		s.quotas[project] = map[string]int{
			"network": 100, "subnet": 100, "subnetpool": -1, "port": 500, "router": 10,
			"security_group": 10, "security_group_rule": 100, "trunk": -1,
		}
	}
	return s.quotas[project]
}

// serveQuotas serves the limits of a project, and their use.
func (s *Server) serveQuotas(r *http.Request, c caller, parts []string, body Object) (int, any, *fault) {
	if len(parts) < 2 {
		return 0, nil, refuse(http.StatusNotFound, "HTTPNotFound", "The resource could not be found.")
	}
	project := parts[1]
	if project != c.project && !c.admin {
		return 0, nil, refuse(http.StatusForbidden, "AdminRequired", "User does not have admin privileges: Only admin is authorized to access quotas for another project.")
	}
	limits := s.quotasOf(project)
	if r.Method == http.MethodPut {
		changes, _ := body["quota"].(Object)
		for name := range changes {
			limits[name] = number(changes, name)
		}
	}
	if len(parts) == 2 {
		return http.StatusOK, Object{"quota": limits}, nil
	}
	details := Object{}
	for _, res := range s.kinds {
		details[res.quota] = Object{"limit": limits[res.quota], "used": s.count(res.many, project), "reserved": 0}
	}
	if strings.TrimSuffix(parts[2], ".json") != "details" {
		return 0, nil, refuse(http.StatusNotFound, "HTTPNotFound", "The resource could not be found.")
	}
	return http.StatusOK, Object{"quota": details}, nil
}
