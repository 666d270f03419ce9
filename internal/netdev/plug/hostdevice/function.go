package hostdevice

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// function is a virtual function: its number, and the links of its physical function. In
// some modes of a driver these are also the other ends of virtual functions.
type function struct {
	number int
	links  []string
}

// functionAt returns the virtual function whose directory in sysfs is dir. Errors:
// link.ErrInvalid if the device is none, or if its physical function has no link.
func functionAt(dir string) (function, error) {
	what := "device " + filepath.Base(dir)
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return function{}, fmt.Errorf("looking for the physical function of %s: %w", what, err)
	}
	virtual, err := filepath.Glob(filepath.Join(dir, "physfn/virtfn*"))
	if err != nil {
		return function{}, err
	}
	for _, v := range virtual {
		if to, err := filepath.EvalSymlinks(v); err != nil || to != dir {
			continue
		}
		number, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(v), "virtfn"))
		if err != nil {
			return function{}, fmt.Errorf("looking for the number of %s: %w", what, err)
		}
		links, err := os.ReadDir(filepath.Join(dir, "physfn/net"))
		if err != nil || len(links) == 0 {
			return function{}, link.Invalid(what, errors.New("must have a physical function with a link of the kernel on the node"))
		}
		f := function{number: number}
		for _, l := range links {
			f.links = append(f.links, l.Name())
		}
		return f, nil
	}
	return function{}, link.Invalid(what, errors.New("must be a virtual function of SR-IOV: use type host-device for another device"))
}

// settings are settings of a virtual function by key: a letter each, with up to three
// numbers. A setting that is not there is not requested, or was not changed.
type settings map[byte][3]uint64

// Keys of settings, with their numbers.
const (
	vfLinkState  = 'l' // netlink.VF_LINK_STATE_AUTO and others
	vfMAC        = 'm'
	vfRate       = 'r' // min and max in Mbit/s
	vfSpoofCheck = 's' // 0 or 1
	vfTrust      = 't' // 0 or 1
	vfVLAN       = 'v' // id, QoS and EtherType of the tag
)

// vfKeys are the keys in the order in which settings are made. limits has the highest
// value of each number.
var vfKeys = []struct {
	key    byte
	name   string
	limits []uint64
}{
	{vfVLAN, "vlan", []uint64{4095, 7, 0xffff}},
	{vfMAC, "mac", []uint64{1<<48 - 1}},
	{vfRate, "rate", []uint64{1<<31 - 1, 1<<31 - 1}},
	{vfSpoofCheck, "spoofCheck", []uint64{1}},
	{vfTrust, "trust", []uint64{1}},
	{vfLinkState, "linkState", []uint64{uint64(netlink.VF_LINK_STATE_DISABLE)}},
}

// String returns the settings as they stand in a record and in a mark: the numbers
// in hexadecimal form, as v64.3.8100/t1.
func (s settings) String() string {
	var words []string
	for _, k := range vfKeys {
		numbers, ok := s[k.key]
		if !ok {
			continue
		}
		parts := make([]string, len(k.limits))
		for n := range parts {
			parts[n] = strconv.FormatUint(numbers[n], 16)
		}
		words = append(words, string(rune(k.key))+strings.Join(parts, "."))
	}
	return strings.Join(words, "/")
}

// parseSettings is the reverse of String; ok is false for any other text.
func parseSettings(text string) (s settings, ok bool) {
	s = settings{}
	if text == "" {
		return s, true
	}
	for word := range strings.SplitSeq(text, "/") {
		for _, k := range vfKeys {
			rest, is := strings.CutPrefix(word, string(rune(k.key)))
			parts := strings.Split(rest, ".")
			if !is || len(parts) != len(k.limits) {
				continue
			}
			var numbers [3]uint64
			for n, part := range parts {
				number, err := strconv.ParseUint(part, 16, 64)
				if err != nil || number > k.limits[n] {
					return nil, false
				}
				numbers[n] = number
			}
			s[k.key] = numbers
		}
	}
	return s, s.String() == text
}

// settingsOf returns the settings that an interface requests.
func settingsOf(i plug.Interface) settings {
	vf, s := i.Binding.HostDevice.VF, settings{}
	if v := vf.VLAN; v != nil {
		protocol := uint64(unix.ETH_P_8021Q)
		if v.Protocol == "802.1ad" {
			protocol = unix.ETH_P_8021AD
		}
		s[vfVLAN] = [3]uint64{uint64(v.ID), uint64(v.QoS), protocol} //nolint:gosec // the API has their limits
	}
	if i.MAC != nil {
		s[vfMAC] = [3]uint64{macNumber(i.MAC)}
	}
	if r := vf.Rate; r != nil {
		s[vfRate] = [3]uint64{uint64(r.Min), uint64(r.Max)} //nolint:gosec // they are not negative
	}
	if vf.SpoofCheck != nil {
		s[vfSpoofCheck] = flag(*vf.SpoofCheck)
	}
	if vf.Trust != nil {
		s[vfTrust] = flag(*vf.Trust)
	}
	switch vf.LinkState {
	case v1alpha1.VFLinkAuto:
		s[vfLinkState] = [3]uint64{uint64(netlink.VF_LINK_STATE_AUTO)}
	case v1alpha1.VFLinkEnable:
		s[vfLinkState] = [3]uint64{uint64(netlink.VF_LINK_STATE_ENABLE)}
	case v1alpha1.VFLinkDisable:
		s[vfLinkState] = [3]uint64{uint64(netlink.VF_LINK_STATE_DISABLE)}
	}
	return s
}

// settingsIn returns all settings of a virtual function.
func settingsIn(now netlink.VfInfo) settings {
	return settings{
		vfVLAN:       {uint64(now.Vlan), uint64(now.Qos), uint64(cmp.Or(now.VlanProto, unix.ETH_P_8021Q))}, //nolint:gosec // the kernel's, from unsigned ones
		vfMAC:        {macNumber(now.Mac)},
		vfRate:       {uint64(now.MinTxRate), uint64(now.MaxTxRate)},
		vfSpoofCheck: flag(now.Spoofchk),
		vfTrust:      flag(now.Trust == 1), // a driver without this setting has another number
		vfLinkState:  {uint64(now.LinkState)},
	}
}

func flag(on bool) [3]uint64 {
	if on {
		return [3]uint64{1}
	}
	return [3]uint64{}
}

func macNumber(mac net.HardwareAddr) (n uint64) {
	for _, b := range mac {
		n = n<<8 | uint64(b)
	}
	return n
}

// only returns the settings whose keys are in another list.
func (s settings) only(of settings) settings {
	out := maps.Clone(s)
	maps.DeleteFunc(out, func(key byte, _ [3]uint64) bool { _, has := of[key]; return !has })
	return out
}

// functions reads and changes virtual functions by a link of their physical function.
type functions interface {
	// Read returns the state of its virtual functions.
	Read(physical string) ([]netlink.VfInfo, error)
	// Set makes one setting of a virtual function.
	Set(physical string, number int, key byte, to [3]uint64) error
}

// stateOf returns the settings of a virtual function, and the link of its physical
// function by which they can be changed.
func stateOf(k functions, f function) (state settings, physical string, err error) {
	for _, l := range f.links {
		all, err := k.Read(l)
		if err != nil {
			return nil, "", err
		}
		if n := slices.IndexFunc(all, func(i netlink.VfInfo) bool { return i.ID == f.number }); n >= 0 {
			return settingsIn(all[n]), l, nil
		}
	}
	return nil, "", link.Invalid(fmt.Sprintf("virtual function %d of %s", f.number, strings.Join(f.links, ", ")), errors.New("must be one that the driver of the physical function can set up: it lists none of this number"))
}

// setUp makes settings of a virtual function. Errors: link.ErrInvalid if the driver refuses
// one.
func setUp(k functions, physical string, number int, s settings) error {
	for _, key := range vfKeys {
		to, wanted := s[key.key]
		if !wanted {
			continue
		}
		err := k.Set(physical, number, key.key, to)
		if err == nil {
			continue
		}
		what := fmt.Sprintf("%s of virtual function %d of %s", key.name, number, physical)
		for _, refused := range []error{unix.EINVAL, unix.EOPNOTSUPP, unix.ERANGE, unix.EPERM, unix.EPROTONOSUPPORT, unix.EADDRNOTAVAIL} {
			if errors.Is(err, refused) {
				return fmt.Errorf("%w: %s: the driver refuses %s: remove the setting, or choose a value that the driver accepts: %w", link.ErrInvalid, what, settings{key.key: to}, err)
			}
		}
		return fmt.Errorf("setting %s: %w", what, err)
	}
	return nil
}

// vfChange is the change of a virtual function for an interface; the zero value changes
// nothing.
type vfChange struct {
	physical string
	number   int
	// wanted are the settings of the interface, former those that the virtual function has
	// in their place.
	wanted, former settings
}

// changeFor returns the change of the virtual function that an interface is. Errors:
// link.ErrInvalid if the device is none.
func (d *hostDevice) changeFor(i plug.Interface) (vfChange, error) {
	b := i.Binding.HostDevice
	if b.VF == nil {
		return vfChange{}, nil
	}
	f, err := functionAt(d.dirOf(b))
	if err != nil {
		return vfChange{}, err
	}
	now, physical, err := stateOf(d.functions, f)
	wanted := settingsOf(i)
	return vfChange{physical: physical, number: f.number, wanted: wanted, former: now.only(wanted)}, err
}

// reset gives a virtual function its former settings. It is the link of this name on the
// host, where no sandbox can use it.
func (d *hostDevice) reset(name, former string) error {
	back, ok := parseSettings(former)
	if !ok {
		return fmt.Errorf("the former settings of %s: %q: the record has another form", name, former)
	}
	if len(back) == 0 {
		return nil
	}
	f, err := functionAt(d.dirOfLink(name))
	if err != nil {
		return err
	}
	now, physical, err := stateOf(d.functions, f)
	if err != nil {
		return err
	}
	maps.DeleteFunc(back, func(key byte, to [3]uint64) bool { return now[key] == to })
	if err := setUp(d.functions, physical, f.number, back); err != nil {
		return err
	}
	d.after(deviceReset)
	return nil
}

// isFunction reports whether a link of the host is a virtual function.
func (d *hostDevice) isFunction(name string) bool {
	_, err := os.Lstat(filepath.Join(d.dirOfLink(name), "physfn"))
	return err == nil
}

// dirOfLink returns the directory of the device of a link of the host.
func (d *hostDevice) dirOfLink(name string) string {
	return filepath.Join(d.sys, "class/net", name, "device")
}

// kernelFunctions are those of the kernel.
type kernelFunctions struct{ *link.Sockets }

func (k kernelFunctions) Read(physical string) (all []netlink.VfInfo, err error) {
	err = k.at(physical, func(_ *netlink.Handle, l netlink.Link) error {
		all = l.Attrs().Vfs
		return nil
	})
	return all, err
}

func (k kernelFunctions) Set(physical string, number int, key byte, to [3]uint64) error {
	return k.at(physical, func(h *netlink.Handle, l netlink.Link) error {
		switch a, b := int(to[0]), int(to[1]); key { //nolint:gosec // vfKeys has the limits
		case vfVLAN:
			return h.LinkSetVfVlanQosProto(l, number, a, b, int(to[2])) //nolint:gosec // an EtherType
		case vfMAC:
			return h.LinkSetVfHardwareAddr(l, number, binary.BigEndian.AppendUint64(nil, to[0])[2:])
		case vfRate:
			return h.LinkSetVfRate(l, number, a, b)
		case vfSpoofCheck:
			return h.LinkSetVfSpoofchk(l, number, a == 1)
		case vfTrust:
			return h.LinkSetVfTrust(l, number, a == 1)
		default:
			return h.LinkSetVfState(l, number, uint32(a)) //nolint:gosec // at most 2
		}
	})
}

// at calls do with a link of the host.
func (k kernelFunctions) at(name string, do func(*netlink.Handle, netlink.Link) error) error {
	h, err := k.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("looking at physical function %s: %w", name, err)
	}
	return do(h, l)
}
