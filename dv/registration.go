package dv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
)

// AddressList holds a program's part of the addresses that a port's netdev receives besides its
// own. The netdev's driver writes them into the function's lists, and an e-switch in front of the
// port passes only what is in there: on a virtual function, and on a physical one with SR-IOV on
// (linux drivers/net/ethernet/mellanox/mlx5/core/eswitch.c). Its methods may be called from any
// goroutine.
type AddressList interface {
	// Add receives frames to mac, to every group if mac is nil.
	Add(mac net.HardwareAddr) error
	// Remove undoes one Add.
	Remove(mac net.HardwareAddr) error
	// Close undoes all.
	Close() error
}

// maxGroups says how many groups are added one by one; for more, all multicast is. The driver
// writes its whole list at each change, and leaves out what the card has no room for.
const maxGroups = 100

// registration is our addresses in the list of the port's netdev.
type registration struct {
	mu     sync.Mutex
	list   AddressList     // guarded by mu, as are the others; nil: not open
	groups map[string]bool // added, by address; "" is all
}

// registerMAC puts our MAC into the list of the port's netdev for as long as the device is open.
// Where that fails the device works all the same without an e-switch, so it goes on.
func (d *Device) registerMAC(t *target) {
	if t.addresses == nil || d.config.HostMode {
		return // in host mode the addresses are the netdev's, and no multicast comes to us
	}
	if err := d.cleanup.runStep("addresses of the netdev", func() error { return d.openList(t) },
		d.closeList); err != nil {
		d.log.Warn("the port's netdev does not take our addresses: an e-switch in front of the "+
			"port, of a virtual function or with SR-IOV on, drops frames for us",
			"device", d.Name(), "netdev", d.Netdev(), "mac", d.MAC().String(), "error", err)
	}
}

func (d *Device) openList(t *target) error {
	list, err := t.addresses(d.log)
	if err != nil {
		return err
	}
	if !slices.Equal(d.MAC(), d.facts.MAC) {
		if err := list.Add(d.MAC()); err != nil {
			return errors.Join(err, list.Close())
		}
	}
	d.registered.mu.Lock()
	defer d.registered.mu.Unlock()
	d.registered.list, d.registered.groups = list, map[string]bool{}
	return nil
}

func (d *Device) closeList() error {
	r := &d.registered
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list = nil
	return list.Close()
}

// relistMAC puts our MAC into the list of the port's netdev in the place of the one before. The
// netdev's own need not be in it.
func (d *Device) relistMAC(before net.HardwareAddr) error {
	r := &d.registered
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.list == nil || slices.Equal(before, d.facts.MAC) {
		return nil
	}
	return errors.Join(r.list.Add(d.MAC()), r.list.Remove(before))
}

// SetGroups says which multicast addresses are ours: frames to them reach the port even behind an
// e-switch that passes only the addresses that its function lists. It replaces those of the call
// before. What the port receives of all multicast comes to us anyway. The error says which
// addresses could not be added; the others were. A closed device does nothing.
func (d *Device) SetGroups(groups []net.HardwareAddr) error {
	r := &d.registered
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.list == nil {
		return nil
	}
	return r.replaceGroups(groups)
}

// replaceGroups adds what is new and removes what is no longer wanted. Called with the lock held.
func (r *registration) replaceGroups(groups []net.HardwareAddr) error {
	if len(groups) > maxGroups {
		groups = append(slices.Clone(groups[:maxGroups]), nil)
	}
	var errs []error
	wanted := map[string]bool{}
	for _, g := range groups {
		wanted[string(g)] = true
		if r.groups[string(g)] {
			continue
		}
		if err := r.list.Add(g); err != nil {
			errs = append(errs, fmt.Errorf("add multicast address %v: %w", g, err))
			continue
		}
		r.groups[string(g)] = true
	}
	for g := range r.groups {
		if wanted[g] {
			continue
		}
		delete(r.groups, g)
		var mac net.HardwareAddr
		if g != "" {
			mac = net.HardwareAddr(g)
		}
		if err := r.list.Remove(mac); err != nil {
			errs = append(errs, fmt.Errorf("remove multicast address %v: %w", mac, err))
		}
	}
	return errors.Join(errs...)
}

// commandList holds the AddressList of a netdev in another network namespace: it says which
// commands do there what a program here cannot.
type commandList struct {
	log   *slog.Logger
	level slog.Level // Warn where there is an e-switch
}

func (c commandList) Add(mac net.HardwareAddr) error {
	c.log.Log(context.Background(), c.level,
		"behind an e-switch, of a virtual function or with SR-IOV on, this is needed in "+
			"the network namespace of the port's netdev",
		"command", addCommand(mac))
	return nil
}

func (c commandList) Remove(net.HardwareAddr) error { return nil }

func (c commandList) Close() error { return nil }

// addCommand has a netdev receive frames to mac, to every group if mac is nil.
func addCommand(mac net.HardwareAddr) string {
	switch {
	case mac == nil:
		return "ip link set NETDEV allmulticast on"
	case mac[0]&1 != 0:
		return fmt.Sprintf("ip maddr add %v dev NETDEV", mac)
	}
	return fmt.Sprintf("bridge fdb add %v dev NETDEV self", mac)
}
