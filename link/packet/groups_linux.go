package packet

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// maxGroups says how many groups are passed one by one; of more, all are.
const maxGroups = 100

// groups is the multicast addresses that come to us.
type groups struct {
	mu     sync.Mutex
	joined [][6]byte // guarded by mu, as is all
	all    bool
	muted  bool              // nothing passes
	drops  []unix.SockFilter // what comes ahead of the program, see sourceFilter

	program []unix.SockFilter // that all sockets have; nil if that is not known
}

// SetGroups says which multicast addresses are ours, in place of those of the call before; until
// the first, all are. Broadcast always comes. A closed port does nothing, nor does one with the
// host's MAC, whose groups Linux has.
func (p *Port) SetGroups(macs []net.HardwareAddr) error {
	if p.cfg.Host {
		return nil
	}
	var wanted [][6]byte
	for _, mac := range macs {
		if len(mac) != 6 || mac[0]&1 == 0 {
			return fmt.Errorf("%v is no group's address: give one whose first byte is odd", mac)
		}
		wanted = append(wanted, [6]byte(mac))
	}
	if len(wanted) > maxGroups {
		return p.changeGroups(nil, true)
	}
	return p.changeGroups(wanted, false)
}

// changeGroups has the NIC pass what is new, then the kernel, and then the NIC no longer what is
// not wanted any more.
func (p *Port) changeGroups(wanted [][6]byte, all bool) error {
	g := &p.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	var errs []error
	change := func(option int, mac []byte) {
		if err := setMembership(p.rx[0].fd, p.iface.index, option, mac); err != nil {
			errs = append(errs, fmt.Errorf("register %v with %s: %w", net.HardwareAddr(mac), p.name,
				err))
		}
	}
	if all && !g.all {
		change(unix.PACKET_ADD_MEMBERSHIP, nil)
	}
	for _, mac := range wanted {
		if !slices.Contains(g.joined, mac) {
			change(unix.PACKET_ADD_MEMBERSHIP, mac[:])
		}
	}
	if err := p.attachFilters(wanted, all); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, mac := range g.joined {
		if !slices.Contains(wanted, mac) {
			change(unix.PACKET_DROP_MEMBERSHIP, mac[:])
		}
	}
	if g.all && !all {
		change(unix.PACKET_DROP_MEMBERSHIP, nil)
	}
	g.joined, g.all = wanted, all
	return errors.Join(errs...)
}

// attachFilters has the kernel pass what is ours.
func (p *Port) attachFilters(joined [][6]byte, all bool) error {
	ours := append([][6]byte{[6]byte(p.cfg.MAC), {255, 255, 255, 255, 255, 255}}, joined...)
	program := frameFilter(ours, all, p.cfg.VLAN)
	if p.cfg.Host {
		program = p.ports.Load().classicFilter()
	}
	program = slices.Concat(p.groups.drops, program)
	if p.groups.muted {
		program = rejectAll()
	}
	if slices.Equal(program, p.groups.program) {
		return nil
	}
	p.groups.program = nil
	for _, q := range p.rx {
		if err := setFilter(q.fd, program); err != nil {
			return fmt.Errorf("attach the filter of %s: %w", p.name, err)
		}
	}
	p.groups.program = program
	return nil
}
