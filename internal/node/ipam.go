package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/tracing"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// handleIPAM serves a plugin that makes an interface and asks for its addresses
// (CNI specification 1.1.0, section 4, and the conventions for IPAM plugins).
func (v *verbs) handleIPAM(ctx context.Context, r cniproto.Request) ([]byte, error) {
	key := addressKey{r.ContainerID, r.IfName}
	switch r.Verb {
	case cniproto.VerbAdd:
		return v.addAddresses(ctx, r)
	case cniproto.VerbDel:
		// An interface may be unplugged and plugged again.
		return nil, v.manager.DelPart(ctx, key.String(), func(context.Context) error { return v.freeAddresses(key) })
	case cniproto.VerbCheck:
		return nil, v.checkAddresses(r)
	case cniproto.VerbStatus:
		if !v.registry.isSynced() {
			return nil, because(errUnavailable, "node %s has not read its PodAttachments from the API server yet", v.node)
		}
		return nil, nil
	default: // GC, the only other verb of a valid request
		return nil, v.gcAddresses(ctx, r)
	}
}

// ipamConfig is what is needed of another plugin's network configuration.
type ipamConfig struct {
	// name of the network.
	name string
	// routes, dns and static addresses that the network's ipam section adds.
	routes []*cnitypes.Route
	dns    cnitypes.DNS
	static []whereabouts.Address
	// narrow says that the network names pools or ranges of its own, so that its
	// addresses are never those of the default network.
	narrow bool
	// asked are addresses that the runtime asks for.
	asked []netip.Addr
	// gateway is what CNI_ARGS say of one, which has no effect.
	gateway string
}

// reasonNetworkDiffers is the reason of the event on a pod for which something is not
// done as whereabouts does it; the controller has the same one for networks.
const reasonNetworkDiffers = "NetworkDiffers"

// parseIPAM reads a network configuration and CNI_ARGS. Errors name the field.
func parseIPAM(r cniproto.Request) (ipamConfig, error) {
	var c struct {
		Name string `json:"name"`
		IPAM struct {
			Routes []*cnitypes.Route `json:"routes"`
			DNS    cnitypes.DNS      `json:"dns"`
		} `json:"ipam"`
		RuntimeConfig struct {
			IPs []string `json:"ips"`
		} `json:"runtimeConfig"`
	}
	if err := json.Unmarshal(r.Config, &c); err != nil {
		return ipamConfig{}, &cniproto.Error{Code: cniproto.CodeDecode, Msg: "network configuration: " + err.Error()}
	}
	if i := slices.Index(c.IPAM.Routes, nil); i >= 0 {
		return ipamConfig{}, because(errInvalid, "ipam.routes[%d]: null: must be a route, as {\"dst\": \"10.0.0.0/8\"}", i)
	}
	out := ipamConfig{name: c.Name, routes: c.IPAM.Routes, dns: c.IPAM.DNS}
	section, err := nad.Section(r.Config)
	if err != nil {
		return out, because(errInvalid, "%w", err)
	}
	if section != nil {
		if err := out.addSection(section, r.IPAM); err != nil {
			return out, err
		}
	}
	asked := c.RuntimeConfig.IPs
	for pair := range strings.SplitSeq(r.Args, ";") {
		switch key, value, _ := strings.Cut(pair, "="); {
		case key == "IP" && value != "":
			asked = append(asked, strings.Split(value, ",")...)
		case key == "GATEWAY":
			out.gateway = value
		}
	}
	for _, text := range asked {
		addr, _, _ := strings.Cut(strings.TrimSpace(text), "/")
		a, err := netip.ParseAddr(addr)
		if err != nil {
			return out, because(errInvalid, "ips: %q: must be an address, as 10.0.0.7 or 10.0.0.7/24", text)
		}
		out.asked = append(out.asked, a)
	}
	return out, nil
}

// addSection reads whether the network has addresses of its own, and the static
// addresses of a configuration of whereabouts. What a flat file of the controller adds
// to it does not matter to them.
func (c *ipamConfig) addSection(section json.RawMessage, program string) error {
	var o struct {
		Pools     []json.RawMessage `json:"pools"`
		Range     string            `json:"range"`
		IPRanges  []json.RawMessage `json:"ipRanges"`
		Addresses []struct {
			Address string `json:"address"`
			Gateway string `json:"gateway"`
		} `json:"addresses"`
	}
	if err := json.Unmarshal(section, &o); err != nil {
		return because(errInvalid, "ipam: %w", err)
	}
	if program != whereabouts.Type {
		c.narrow = len(o.Pools) > 0
		return nil
	}
	c.narrow = o.Range != "" || len(o.IPRanges) > 0
	for i, s := range o.Addresses {
		prefix, err := netip.ParsePrefix(s.Address)
		if err != nil {
			return because(errInvalid, "ipam.addresses[%d].address: %q: must be an address with the prefix length of its link, as 10.0.0.5/24", i, s.Address)
		}
		a := whereabouts.Address{Prefix: prefix}
		if s.Gateway != "" {
			if a.Gateway, err = netip.ParseAddr(s.Gateway); err != nil {
				return because(errInvalid, "ipam.addresses[%d].gateway: %q: must be an address", i, s.Gateway)
			}
		}
		c.static = append(c.static, a)
	}
	return nil
}

// addAddresses answers with the addresses that the controller has taken for the
// interface: the same ones however often it is asked.
func (v *verbs) addAddresses(ctx context.Context, r cniproto.Request) (answer []byte, err error) {
	pod, err := parseArgs(r.Args)
	if err != nil {
		return nil, err
	}
	config, err := parseIPAM(r)
	if err != nil {
		return nil, err
	}
	err = v.manager.AddPart(ctx, r.ContainerID, addressKey{r.ContainerID, r.IfName}.String(), func(ctx context.Context) error {
		sandbox, err := v.kernel.Enter(r.Netns)
		if err != nil {
			return fmt.Errorf("CNI_NETNS: %w", err)
		}
		id := sandbox.ID()
		sandbox.Close()
		draft := addressRecord{
			Version: recordVersion, ContainerID: r.ContainerID, IfName: r.IfName, BootID: v.ledger.bootID,
			Netns: r.Netns, NetnsID: id, Config: config.name, Pod: pod,
		}
		answer, err = v.attachAddresses(ctx, draft, config, r.CNIVersion())
		return err
	})
	return answer, err
}

// attachAddresses writes the record that a draft becomes, and answers with it.
func (v *verbs) attachAddresses(ctx context.Context, draft addressRecord, config ipamConfig, version string) ([]byte, error) {
	if old := v.ledger.addressesOf(draft.key()); old != nil {
		if old.NetnsID == draft.NetnsID && old.Pod.is(draft.Pod) {
			return inVersion(old.Result, version)
		}
		return nil, because(errEnvironment, "CNI_NETNS: %q: interface %s of sandbox %s has its addresses already, in another namespace or pod, which was at %q", draft.Netns, draft.IfName, draft.ContainerID, old.Netns)
	}
	wait, cancel := v.patience(ctx)
	defer cancel()
	idle, busy := v.manager.Idle(wait)
	defer busy()
	start := time.Now()
	claimed, iface, err := v.claimAddresses(idle, draft, config)
	if err != nil {
		return nil, err
	}
	tracing.Step(ctx, "wait", start)
	v.metrics.step("wait", start)
	done := *claimed
	done.AttachedAt = time.Now()
	err = v.vouch(idle, claimed.sandbox())
	if err == nil {
		done.Result, err = ipamResult(iface, config, version)
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = v.ledger.writeAddresses(&done)
	}
	if err != nil {
		return nil, errors.Join(err, v.freeAddresses(claimed.key()))
	}
	v.ledger.replaceAddresses(&done)
	if config.gateway != "" {
		v.reporter.report(report{pod: done.Pod, reason: reasonNetworkDiffers, note: fmt.Sprintf(
			"CNI_ARGS: GATEWAY=%.60s has no effect on interface %s: its gateway is what the network or the pool says", config.gateway, done.IfName)})
	}
	v.acks.enqueueSoon(done.sandbox().attachmentKey())
	return done.Result, nil
}

// claimAddresses waits for the pod's PodAttachment, and until no earlier sandbox
// has its interface.
func (v *verbs) claimAddresses(ctx context.Context, draft addressRecord, config ipamConfig) (*addressRecord, *v1alpha1.Interface, error) {
	for {
		pa, err := v.await(ctx, draft.Pod)
		if err != nil {
			return nil, nil, err
		}
		iface, err := addressesFor(pa, draft.IfName, config, v.ledger.addressesHeldBy(draft.key()))
		if err != nil {
			return nil, nil, err
		}
		rec := draft
		rec.Pod.UID, rec.Attachment, rec.Interface = pa.Spec.PodUID, attachmentRef{Name: pa.Name, UID: pa.UID}, iface.Name
		for _, cidr := range iface.Addresses {
			addr, _, _ := strings.Cut(cidr, "/")
			rec.Addresses = append(rec.Addresses, addr)
		}
		switch c := v.ledger.claimAddresses(&rec); {
		case c.before != nil && c.before.ContainerID == draft.ContainerID: // in this moment
		case c.before != nil:
			if err := v.succeedAddresses(ctx, c); err != nil {
				return nil, nil, err
			}
		case !c.sealed:
			return &rec, iface, nil
		}
		// What is sealed is being deleted, which the next look shows.
	}
}

// succeedAddresses waits until the interface of the sandbox before has given its
// addresses back. When its namespace is gone its DEL is not waited for.
func (v *verbs) succeedAddresses(ctx context.Context, c addressClaim) error {
	if v.goneAddresses(c.before) {
		return v.reapAddresses(ctx, c.before.key())
	}
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("pod %s: ADD ended while it waited for sandbox %s to give its addresses back: %w", c.before.Pod, c.before.ContainerID, err)
		}
		return because(errNotReady, "pod %s: its sandbox before, %s, did not give its addresses on %s back within %s", c.before.Pod, c.before.ContainerID, c.before.IfName, v.addTimeout)
	}
}

// addressesFor finds the interface of a PodAttachment that another plugin asks
// addresses for: that of the name, else the one of the network, else the default
// one, which runtimes may call as they like, for a network that names no pools. held
// are those whose addresses the sandbox has already, with the names under which it
// asked: they are nobody else's.
func addressesFor(pa *v1alpha1.PodAttachment, ifName string, config ipamConfig, held map[string]string) (*v1alpha1.Interface, error) {
	var found *v1alpha1.Interface
	rank := 0
	for i := range pa.Spec.Interfaces {
		iface := &pa.Spec.Interfaces[i]
		if iface.Binding.AddressOnly == nil || held[iface.Name] != "" {
			continue
		}
		is := 0
		switch _, network, _ := strings.Cut(iface.Network, "/"); {
		case iface.Name == ifName:
			is = 3
		case config.name != "" && (network == config.name || iface.Network == config.name):
			is = 2
		case iface.Default && !config.narrow:
			is = 1
		}
		if is > rank {
			found, rank = iface, is
		}
	}
	if found == nil {
		return nil, noAddresses(pa, ifName, config, held)
	}
	for _, a := range config.asked {
		if !slices.Contains(hosts(found.Addresses), a) && !slices.ContainsFunc(config.static, func(s whereabouts.Address) bool { return s.Prefix.Addr() == a }) {
			return nil, because(errInvalid, "ips: %s: the interface has %s: ask for an address with \"ips\" in the pod's annotation", a, strings.Join(found.Addresses, ", "))
		}
	}
	return found, nil
}

// noAddresses says why a PodAttachment has no addresses for an interface, and what
// would have it get some.
func noAddresses(pa *v1alpha1.PodAttachment, ifName string, config ipamConfig, held map[string]string) error {
	var has []string
	further := false
	for _, i := range pa.Spec.Interfaces {
		text := i.Name + " on " + i.Network
		if as := held[i.Name]; as != "" {
			text += " (which this sandbox has, as " + as + ")"
		}
		has = append(has, text)
		further = further || !i.Default
	}
	cure := "a network is read when the pod is made, not when it is added to one that runs: name it in the annotation " + annotationNetworks + " and make the pod again"
	if !further {
		cure = "no further network was read for this pod: the controller's configuration must have multiVIFSources: [npwg], and the pod's annotation " +
			annotationNetworks + " must name the network when the pod is made"
	}
	return because(errInvalid, "PodAttachment %s/%s has no addresses for interface %q of network %q, only for %s: %s",
		pa.Namespace, pa.Name, ifName, config.name, strings.Join(has, ", "), cure)
}

// annotationNetworks is where a pod names its further networks (NPWG multi-network
// specification, version 1.3, section 3.1).
const annotationNetworks = "k8s.v1.cni.cncf.io/networks"

// ipamResult is the answer of an IPAM plugin: no interfaces, and no index of one.
func ipamResult(iface *v1alpha1.Interface, config ipamConfig, version string) ([]byte, error) {
	p, err := (&recordedInterface{Interface: *iface}).addresses()
	if err != nil {
		return nil, because(errInvalid, "interface %s: %w", iface.Name, err)
	}
	res := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion, IPs: cniAddresses(p), Routes: cniRoutes(p.Routes), DNS: cniDNS(iface.DNS),
	}
	for _, s := range config.static {
		c := &types100.IPConfig{Address: ipNet(s.Prefix)}
		if s.Gateway.IsValid() {
			c.Gateway = s.Gateway.AsSlice()
		}
		res.IPs = append(res.IPs, c)
	}
	for _, r := range config.routes {
		same := func(o *cnitypes.Route) bool { return o.Dst.String() == r.Dst.String() && o.GW.Equal(r.GW) }
		if i := slices.IndexFunc(res.Routes, same); i >= 0 {
			res.Routes[i] = r // with all that the network says of it
		} else {
			res.Routes = append(res.Routes, r)
		}
	}
	if !config.dns.IsEmpty() {
		res.DNS = config.dns
	}
	return encodeResult(res, version)
}

// freeAddresses forgets the addresses of an interface, and has the controller
// told when they were the pod's last.
func (v *verbs) freeAddresses(k addressKey) error {
	rec, err := v.ledger.removeAddresses(k)
	if err != nil {
		return err
	}
	if rec == nil {
		// Nothing was known, or a damaged record that may have been of any pod.
		for _, key := range v.registry.keys() {
			v.acks.enqueue(key)
		}
		return nil
	}
	v.released(rec.sandbox())
	return nil
}

// checkAddresses makes sure that the interface has its addresses still, as far as
// the result says: the plugin that made it looks at the kernel.
func (v *verbs) checkAddresses(r cniproto.Request) error {
	rec := v.ledger.addressesOf(addressKey{r.ContainerID, r.IfName})
	if rec == nil {
		return because(errGone, "interface %s of sandbox %s has no addresses on node %s", r.IfName, r.ContainerID, v.node)
	}
	prev, err := parsePrevResult(r)
	if err != nil {
		return err
	}
	var diffs []string
	for _, text := range rec.Addresses {
		ip := net.ParseIP(text)
		if !slices.ContainsFunc(prev.IPs, func(c *types100.IPConfig) bool { return c != nil && c.Address.IP.Equal(ip) }) {
			diffs = append(diffs, "prevResult lacks address "+text)
		}
	}
	if len(diffs) > 0 {
		return because(errDiffers, "interface %s of sandbox %s: %s", r.IfName, r.ContainerID, strings.Join(diffs, "; "))
	}
	return nil
}

// gcAddresses forgets the addresses of interfaces that the runtime does not list and
// whose sandbox is no more. What lives keeps its addresses: a list may be that of
// another network of the same name, or empty because no pod uses a configuration.
func (v *verbs) gcAddresses(ctx context.Context, r cniproto.Request) error {
	listed, told, err := validSandboxes(r.Config)
	if err != nil || !told {
		return err
	}
	return v.manager.Alone(ctx, func(ctx context.Context) error { return v.sweepAddresses(ctx, listed) })
}

// sweepAddresses forgets the addresses of interfaces whose sandbox is no more, but
// for the containers that are listed.
func (v *verbs) sweepAddresses(ctx context.Context, listed map[string]bool) error {
	var errs []error
	for _, rec := range v.ledger.allAddresses() {
		if rec.Result != nil && !listed[rec.ContainerID] && v.goneAddresses(rec) {
			errs = append(errs, v.reapAddresses(ctx, rec.key()))
		}
	}
	return errors.Join(append(errs, v.sweepDamaged(ctx))...)
}

// reapAddresses forgets the addresses of one, when no request for it is under way
// that changes the picture.
func (v *verbs) reapAddresses(ctx context.Context, k addressKey) error {
	return v.manager.Do(ctx, k.String(), func(ctx context.Context) error {
		rec := v.ledger.addressesOf(k)
		if rec == nil || !v.goneAddresses(rec) {
			return nil
		}
		logr.FromContextOrDiscard(ctx).Info("sandbox is gone without a DEL for its addresses", "sandbox", k.containerID, "interface", k.ifName, "pod", rec.Pod)
		v.metrics.swept.WithLabelValues("addresses").Inc()
		return v.freeAddresses(k)
	})
}

// goneAddresses tells whether nothing can use an interface any more: it is of an
// earlier boot, or its namespace is gone.
func (v *verbs) goneAddresses(rec *addressRecord) bool {
	return rec.BootID != v.ledger.bootID || look(v.kernel, rec.sandbox()) == absent
}

// adoptAddresses takes over what the daemon before left.
func (v *verbs) adoptAddresses(ctx context.Context) error {
	bad, err := v.ledger.readAddresses()
	for _, e := range bad {
		logr.FromContextOrDiscard(ctx).Error(e, "record was damaged and set aside")
	}
	return err
}
