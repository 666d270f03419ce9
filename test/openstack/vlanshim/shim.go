package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// Offsets in struct __sk_buff of the kernel.
const (
	vlanPresent = 20
	vlanTCI     = 24
)

const (
	tcxNext     = -1       // the result of a program that leaves a frame alone
	vlanMask    = 0xfff    // the VLAN ID in a TCI
	protocol8Q  = 0x0081   // 0x8100, 802.1Q, in network byte order
	maxChildren = 4094     // VLAN IDs of a trunk
	frame       = asm.R6   // the register with the frame
	scratch     = asm.R7   // a register that calls leave alone
	license     = "GPL"    // as the kernel's helpers ask for
	passLabel   = "pass"   // where a frame of no child goes
	nextPrefix  = "after-" // where the comparison with the next child begins
)

// shim is the programs on the ingress of all links.
type shim struct{ links []link.Link }

// newShim attaches the programs. On an error none is attached.
func newShim(parent string, children []child) (s *shim, err error) {
	s = &shim{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
			s = nil
		}
	}()
	port, err := net.InterfaceByName(parent)
	if err != nil {
		return s, fmt.Errorf("parent %s: %w", parent, err)
	}
	if len(children) > maxChildren {
		return s, fmt.Errorf("%d children; must be %d at most", len(children), maxChildren)
	}
	into := asm.Instructions{
		asm.Mov.Reg(frame, asm.R1),
		asm.LoadMem(scratch, frame, vlanPresent, asm.Word),
		asm.JEq.Imm(scratch, 0, passLabel),
		asm.LoadMem(scratch, frame, vlanTCI, asm.Word),
		asm.And.Imm(scratch, vlanMask),
	}
	for _, c := range children {
		device, err := net.InterfaceByName(c.link)
		if err != nil {
			return s, fmt.Errorf("child %s: %w", c.link, err)
		}
		if err := s.attach(c.link, device.Index, tag(c.vlan, port.Index)); err != nil {
			return s, err
		}
		into = append(into, untag(c.vlan, device.Index)...)
	}
	into = append(into, asm.Mov.Imm(asm.R0, tcxNext).WithSymbol(passLabel), asm.Return())
	return s, s.attach(parent, port.Index, into)
}

// tag gives a frame a VLAN ID and has the parent send it.
func tag(vlan, parent int) asm.Instructions {
	return append(asm.Instructions{
		asm.Mov.Reg(frame, asm.R1),
		asm.Mov.Imm(asm.R2, protocol8Q),
		asm.Mov.Imm(asm.R3, int32(vlan)),
		asm.FnSkbVlanPush.Call(),
	}, send(parent)...)
}

// untag takes the tag off a frame with this VLAN ID and has the child send it.
func untag(vlan, child int) asm.Instructions {
	next := fmt.Sprintf("%s%d", nextPrefix, vlan)
	out := asm.Instructions{
		asm.JNE.Imm(scratch, int32(vlan), next),
		asm.Mov.Reg(asm.R1, frame),
		asm.FnSkbVlanPop.Call(),
	}
	out = append(out, send(child)...)
	return append(out, asm.Mov.Reg(scratch, scratch).WithSymbol(next))
}

// send ends a program: the link with this index sends the frame.
func send(index int) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R1, int32(index)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
	}
}

// attach has a program see each frame that arrives at a link.
func (s *shim) attach(name string, index int, instructions asm.Instructions) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: license, Instructions: instructions})
	if err != nil {
		return fmt.Errorf("load the program of %s: %w", name, err)
	}
	defer program.Close() // the link keeps it
	attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return fmt.Errorf("attach the program of %s, which needs Linux 6.6: %w", name, err)
	}
	s.links = append(s.links, attached)
	return nil
}

// Close detaches the programs.
func (s *shim) Close() error {
	var errs []error
	for _, l := range s.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
