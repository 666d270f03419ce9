package link

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// noNamespaceID is NETNSA_NSID_NOT_ASSIGNED of linux/net_namespace.h. In a request it
// leaves the choice to the kernel.
const noNamespaceID = -1

// OutsideLink is a link in another namespace than the host's. The host has an ID for the
// namespace, which works also if no path leads to the namespace any more. The kernel may
// reuse the ID after the namespace has ended.
type OutsideLink struct {
	netlink.Link
	// Namespace is the host's ID for the namespace of the link.
	Namespace int
	// Parent is the index of the link's parent, 0 if it has none on the host.
	Parent int
}

// AssignID returns the step that gives the host an ID for a namespace, by its file
// descriptor. The kernel gives it only one.
func AssignID(namespace int) Step {
	chosen := int32(noNamespaceID)
	req := nl.NewNetlinkRequest(unix.RTM_NEWNSID, 0)
	req.AddData(nl.NewRtGenMsg())
	req.AddData(nl.NewRtAttr(netlink.NETNSA_FD, nl.Uint32Attr(uint32(namespace))))
	req.AddData(nl.NewRtAttr(netlink.NETNSA_NSID, nl.Uint32Attr(uint32(chosen))))
	return Step{What: "giving the namespace of the sandbox an ID", Req: req, Optional: true}
}

// OutsideLinks lists the links of all namespaces that the host has an ID for. A namespace
// that ends meanwhile is left out.
func (s *Sockets) OutsideLinks(ctx context.Context) (links []OutsideLink, err error) {
	home, err := s.Home()
	if err != nil {
		return nil, err
	}
	err = s.In(func() (err error) {
		links, err = linksOutside(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	// The kernel names the namespace of a parent as the host does. It gives the host an ID
	// of its own for that.
	own, err := s.NamespaceID(home)
	if err != nil {
		return nil, err
	}
	links = slices.DeleteFunc(links, func(l OutsideLink) bool { return own >= 0 && l.Namespace == own })
	for n, l := range links {
		if a := l.Attrs(); own >= 0 && a.NetNsID == own {
			links[n].Parent = a.ParentIndex
		}
	}
	return links, nil
}

// linksOutside lists the links of all namespaces that the calling thread's namespace has
// an ID for, itself included if it has one.
func linksOutside(ctx context.Context) (links []OutsideLink, err error) {
	ids, err := Dump(ctx, "listing namespaces", namespaceIDs)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		in, err := Dump(ctx, "listing the links of a namespace", func() ([]netlink.Link, error) { return linksIn(id) })
		if errors.Is(err, unix.EINVAL) {
			continue // the namespace has ended
		}
		if err != nil {
			return nil, err
		}
		for _, l := range in {
			links = append(links, OutsideLink{Link: l, Namespace: id})
		}
	}
	return links, nil
}

// NamespaceID returns the host's ID for an open namespace, negative if it has none.
func (s *Sockets) NamespaceID(ns *Namespace) (int, error) {
	h, err := s.Handle()
	if err != nil {
		return 0, err
	}
	defer h.Close()
	return h.GetNetNsIdByFd(ns.FD())
}

// RemoveOutside returns the step that removes a link in another namespace.
func RemoveOutside(l OutsideLink) Step {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.Attrs().Index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(l.Namespace))))
	return Step{What: "removing " + l.Attrs().Name + " in another namespace", Req: req}
}

// namespaceIDs lists the IDs that the calling thread's namespace has for others.
func namespaceIDs() (ids []int, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP)
	req.AddData(nl.NewRtGenMsg())
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNSID)
	for _, m := range msgs {
		if id, parseErr := namespaceID(m); parseErr == nil && id >= 0 {
			ids = append(ids, id)
		}
	}
	return ids, err
}

func namespaceID(message []byte) (int, error) {
	attrs, err := nl.ParseRouteAttr(message[nl.DeserializeRtGenMsg(message).Len():])
	for _, a := range attrs {
		if a.Attr.Type == netlink.NETNSA_NSID && len(a.Value) >= 4 {
			return int(int32(nl.NativeEndian().Uint32(a.Value))), nil
		}
	}
	return noNamespaceID, err
}

// linksIn lists the links of a namespace by the ID that the calling thread's namespace
// has for it.
func linksIn(namespace int) ([]netlink.Link, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(namespace))))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	links := make([]netlink.Link, 0, len(msgs))
	for _, m := range msgs {
		l, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	return links, nil
}

// Ended reports whether there is evidence that the namespace with an ID is not that of a
// sandbox any more: the path of the sandbox does not exist, or leads to another
// namespace. It is false in case of doubt.
func (s *Sockets) Ended(path string, id int) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	ns, err := OpenAnyNamespace(path)
	var not *notNamespaceError
	if errors.As(err, &not) && not.missing {
		_, err := os.Stat(filepath.Dir(path))
		return err == nil
	}
	if err != nil {
		return false
	}
	defer ns.Close() //nolint:errcheck // it was only read
	now, err := s.NamespaceID(ns)
	return err == nil && now != id
}
