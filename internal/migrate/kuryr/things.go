package kuryr

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Names of kinds in a plan, beside those of Kuryr.
const (
	kindDefinition = "NetworkAttachmentDefinition"
	kindProject    = "Project of a namespace"
)

// things judges all objects but ports.
func (s State) things() []Thing {
	out := []Thing{}
	for _, o := range s.Networks {
		t := Thing{Kind: "KuryrNetwork", Name: o.Namespace + "/" + o.Name, Served: ownNetworks.served, Text: ownNetworks.text + "; delete this one in OpenStack when Kuryr is gone"}
		network, subnet := text(o.Content, "status", "netId"), text(o.Content, "status", "subnetId")
		t.Cloud = ids("network", network, "subnet", subnet, "router", text(o.Content, "status", "routerId"))
		if s.Cloud != nil {
			if missing := s.Cloud.missing(network, subnet); missing != "" {
				t.Text = ownNetworks.text + "; " + missing
			}
		}
		out = append(out, t)
	}
	for _, o := range s.LoadBalancers {
		t := Thing{Kind: "KuryrLoadBalancer", Name: o.Namespace + "/" + o.Name, Served: Other}
		switch kind := text(o.Content, "spec", "type"); kind {
		case "LoadBalancer":
			t.Text = "cloud-provider-openstack serves Services of type LoadBalancer"
		default:
			t.Text = "kube-proxy serves it; delete the load balancer in OpenStack when Kuryr is gone"
		}
		t.Cloud = ids("load balancer", text(o.Content, "status", "loadbalancer", "id"), "floating IP", text(o.Content, "status", "service_pub_ip_info", "ip_id"))
		out = append(out, t)
	}
	for _, o := range s.Policies {
		out = append(out, Thing{
			Kind: "KuryrNetworkPolicy", Name: o.Namespace + "/" + o.Name, Served: policies.served, Text: policies.text,
			Cloud: ids("security group", text(o.Content, "status", "securityGroupId")),
		})
	}
	for _, d := range s.Definitions {
		t := Thing{Kind: kindDefinition, Name: d.Namespace + "/" + d.Name, Served: Yes, Text: "the driver neutron serves it as it stands"}
		subnet, err := d.subnet()
		t.Cloud = ids("subnet", subnet)
		if err != nil {
			t.Served, t.Text = No, err.Error()
		}
		out = append(out, t)
	}
	for namespace, project := range s.Projects {
		t := Thing{Kind: kindProject, Name: namespace, Served: Yes, Text: "openstack.open[].projects opens it, as below"}
		if !isProject(project) {
			t.Served, t.Text = No, fmt.Sprintf("annotation openstack.org/kuryr-project: %s: must be the ID of a project", strconv.QuoteToASCII(clip(project)))
		} else {
			t.Cloud = ids("project", project)
		}
		out = append(out, t)
	}
	slices.SortFunc(out, byName)
	return out
}

// subnet returns the subnet of a definition. An error names the annotation and the value.
func (d Definition) subnet() (string, error) {
	var c struct {
		Subnet string `json:"subnetId"`
		Driver string `json:"driverType"`
	}
	const of = "annotation openstack.org/kuryr-config: "
	if err := json.Unmarshal([]byte(d.Kuryr), &c); err != nil {
		return "", fmt.Errorf(of+"must be a JSON object: %w", err)
	}
	if !uuid.MatchString(c.Subnet) {
		return "", fmt.Errorf(of+"subnetId: %s: must be the ID of a subnet; with driverType alone, as of subnet_mapping, write it there", strconv.QuoteToASCII(clip(c.Subnet)))
	}
	if c.Driver != "" && c.Driver != "neutron-vif" {
		return c.Subnet, fmt.Errorf(of+"driverType: %s: must be neutron-vif, or left out", strconv.QuoteToASCII(clip(c.Driver)))
	}
	return c.Subnet, nil
}

// ids returns pairs of a word and an ID as one text, without those that have no ID.
func ids(pairs ...string) string {
	var out []string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out = append(out, pairs[i]+" "+clip(pairs[i+1]))
		}
	}
	return strings.Join(out, ", ")
}

// isProject reports whether a text may be the ID of a project.
func isProject(s string) bool {
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' && r != '_'
	})
}
