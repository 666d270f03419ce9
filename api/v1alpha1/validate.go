package v1alpha1

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// This file validates the spec of a PodAttachment as the API server does by the markers
// in podattachment.go: the API server accepts every spec that is valid here
// (TestValidIsAccepted). So the controller validates a record before it takes anything
// for a pod.

const (
	// maxDNSText bounds the DNS texts in bytes, which the markers do not: so no spec is
	// too large to be stored.
	maxDNSText = 253
	// maxShown is the number of bytes of a value that an error shows.
	maxShown = 64
)

// InvalidError lists all invalid fields of a spec.
//
// +kubebuilder:object:generate=false
type InvalidError []FieldError

// FieldError is one invalid field.
//
// +kubebuilder:object:generate=false
type FieldError struct {
	// Field is the path of the field, as spec.interfaces[0].name.
	Field string
	// Value of the field.
	Value string
	// Want describes valid values.
	Want string
}

// Error returns every field with its value and the valid values.
func (e InvalidError) Error() string {
	texts := make([]string, 0, len(e))
	for _, f := range e {
		value := f.Value
		if len(value) > maxShown {
			value = strings.ToValidUTF8(value[:maxShown], "") + "..."
		}
		texts = append(texts, fmt.Sprintf("%s: %q: %s", f.Field, value, f.Want))
	}
	return strings.Join(texts, "; ")
}

const (
	wantUID       = "must have 1 to 64 of a-z, A-Z, 0-9 and '-'"
	wantMAC       = "must be six bytes, as 02:23:45:67:89:ab"
	wantPort      = "must be the ID of a port, as 3f1c2d4e-0000-4000-8000-0123456789ab"
	wantInterface = "must have 1 to 15 of a-z, A-Z, 0-9, '_', '.', '-', and begin with a letter or digit"
	wantAddress   = "must be an address with its prefix length, as 10.0.0.5/24 or fd00::5/64"
)

var (
	uidPattern       = regexp.MustCompile(`^[a-zA-Z0-9-]{1,64}$`)
	namespacePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	linkPattern      = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`)
	domainPattern    = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$`)
	macPattern       = regexp.MustCompile(`^([0-9a-f]{2}(:[0-9a-f]{2}){5})?$`)
)

// checker collects invalid fields.
//
// +kubebuilder:object:generate=false
type checker struct{ errs InvalidError }

func (c *checker) want(ok bool, field, value, want string) {
	if !ok {
		c.errs = append(c.errs, FieldError{field, value, want})
	}
}

func (c *checker) length(field, value string, least, most int) {
	c.want(len(value) >= least && len(value) <= most, field, value, fmt.Sprintf("must have %d to %d bytes", least, most))
}

func (c *checker) count(field string, n, least, most int) {
	c.want(n >= least && n <= most, field, fmt.Sprint(n)+" elements", fmt.Sprintf("must have %d to %d", least, most))
}

// Validate returns nil if the API server accepts the spec, otherwise an InvalidError.
func (s *PodAttachmentSpec) Validate() error {
	var c checker
	c.length("spec.podName", s.PodName, 1, 253)
	c.want(uidPattern.MatchString(string(s.PodUID)), "spec.podUID", string(s.PodUID), wantUID)
	c.want(s.APIUID == "" || uidPattern.MatchString(string(s.APIUID)), "spec.apiUID", string(s.APIUID), wantUID)
	c.want(s.NodeUID == "" || uidPattern.MatchString(string(s.NodeUID)), "spec.nodeUID", string(s.NodeUID), wantUID)
	c.want(s.PodNamespace == "" || namespacePattern.MatchString(s.PodNamespace), "spec.podNamespace", s.PodNamespace, "must be the name of a namespace")
	c.length("spec.nodeName", s.NodeName, 1, 253)
	c.length("spec.summary.interfaces", s.Summary.Interfaces, 0, 1024)
	c.length("spec.summary.addresses", s.Summary.Addresses, 0, 4096)
	c.names("spec.plug", s.Plug)
	c.names("spec.unplug", s.Unplug)
	c.count("spec.interfaces", len(s.Interfaces), 1, 32)
	names, defaults := map[string]bool{}, 0
	for n := range s.Interfaces {
		i := &s.Interfaces[n]
		path := fmt.Sprintf("spec.interfaces[%d]", n)
		c.iface(path, i)
		c.want(!names[i.Name], path+".name", i.Name, "must be no other interface's")
		names[i.Name] = true
		if i.Default {
			defaults++
		}
		c.want(!i.Default || defaults == 1, path+".default", "true", "at most one interface may be the default")
	}
	return c.err()
}

// names validates a list of names of interfaces.
func (c *checker) names(field string, list []string) {
	c.count(field, len(list), 0, 32)
	for n, name := range list {
		field := fmt.Sprintf("%s[%d]", field, n)
		c.length(field, name, 0, 15)
		c.want(!slices.Contains(list[:n], name), field, name, "must be named once")
	}
}

// Validate returns nil if the API server accepts the interface in a PodAttachment,
// otherwise an InvalidError.
func (i *Interface) Validate() error {
	var c checker
	c.iface("interface", i)
	return c.err()
}

func (c *checker) err() error {
	if len(c.errs) == 0 {
		return nil
	}
	return c.errs
}

func (c *checker) iface(path string, i *Interface) {
	c.want(linkPattern.MatchString(i.Name), path+".name", i.Name, wantInterface)
	c.length(path+".network", i.Network, 1, 317)
	c.length(path+".driver", i.Driver, 1, 63)
	c.count(path+".addresses", len(i.Addresses), 0, 16)
	for n, a := range i.Addresses {
		c.want(isCIDR(a), fmt.Sprintf("%s.addresses[%d]", path, n), a, wantAddress)
	}
	c.want(domainPattern.MatchString(i.Domain), path+".domain", i.Domain, "must be the name of a domain: 1 to 63 of a-z, 0-9 and '-'")
	c.length(path+".pool", i.Pool, 0, 253)
	c.length(path+".claim", i.Claim, 0, 317)
	c.count(path+".gateways", len(i.Gateways), 0, 2)
	for n, gw := range i.Gateways {
		c.want(isIP(gw), fmt.Sprintf("%s.gateways[%d]", path, n), gw, "must be an address, as 10.0.0.1")
	}
	c.count(path+".routes", len(i.Routes), 0, 64)
	for n, r := range i.Routes {
		c.want(isCIDR(r.Destination), fmt.Sprintf("%s.routes[%d].destination", path, n), r.Destination, "must be a network, as 10.0.0.0/8")
		c.length(fmt.Sprintf("%s.routes[%d].gateway", path, n), r.Gateway, 0, 45)
	}
	c.want(macPattern.MatchString(i.MAC), path+".mac", i.MAC, wantMAC)
	c.want(i.MTU >= 0 && i.MTU <= 65535, path+".mtu", fmt.Sprint(i.MTU), "must be 0 to 65535")
	if i.DNS != nil {
		c.dns(path+".dns", i.DNS)
	}
	if i.Binding.OVS != nil {
		c.want(i.MAC != "", path+".mac", i.MAC, "must be that of the port: the binding is ovs")
		c.want(i.MTU > 0, path+".mtu", fmt.Sprint(i.MTU), "must be that of the port: the binding is ovs")
	}
	c.binding(path+".binding", i.Binding)
	if i.Chain != nil {
		c.plugins(path+".chain", i.Chain)
	}
}

func (c *checker) dns(path string, d *DNS) {
	c.length(path+".domain", d.Domain, 0, maxDNSText)
	for _, l := range []struct {
		name string
		has  []string
		most int
	}{{"nameservers", d.Nameservers, 8}, {"search", d.Search, 32}, {"options", d.Options, 32}} {
		c.count(path+"."+l.name, len(l.has), 0, l.most)
		for n, text := range l.has {
			c.length(fmt.Sprintf("%s.%s[%d]", path, l.name, n), text, 0, maxDNSText)
		}
	}
}

// isCIDR and isIP accept the same texts as the API server's functions
// (k8s.io/apiserver/pkg/cel/library).
func isCIDR(s string) bool {
	p, err := netip.ParsePrefix(s)
	return err == nil && !p.Addr().Is4In6() && len(s) <= 49
}

func isIP(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Zone() == "" && !a.Is4In6() && len(s) <= 45
}
