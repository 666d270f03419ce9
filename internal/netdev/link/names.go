package link

import (
	"errors"
	"fmt"
	"strings"
)

// Limits of the kernel.
const (
	MaxNameLength  = 15    // IFNAMSIZ without the closing zero
	MaxAliasLength = 255   // IFALIASZ without the closing zero
	MinMTU         = 68    // RFC 791
	MinMTUv6       = 1280  // RFC 8200; below it the kernel removes IPv6 from the link
	MaxMTU         = 65535 // veth
	MaxVLAN        = 4094  // the last VLAN (IEEE 802.1Q)
)

// CheckName returns nil if the name of an interface is valid by the rules of the kernel's
// dev_valid_name, otherwise an error with the violated rule.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("must not be empty")
	case len(name) > MaxNameLength:
		return fmt.Errorf("must have at most %d bytes", MaxNameLength)
	case name == ".", name == "..", strings.ContainsAny(name, "/: \t\n\v\f\r\x00%"):
		return errors.New("must have no slash, colon, percent sign or space")
	}
	return nil
}
