package dv

import (
	"bytes"
	"errors"
	"fmt"
	"net"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

// macLen gives the length of an Ethernet address in bytes.
const macLen = 6

// chooseMAC returns the address to claim on a port with facts f, or says why
// not. A port passes frames for any address to us before Linux sees them, so
// claiming the netdev's own takes all of Linux' unicast away.
func chooseMAC(cfg *Config, f *PortFacts) (net.HardwareAddr, error) {
	mac := cfg.MAC
	switch {
	case cfg.HostMode:
		return hostMAC(cfg, f)
	case mac == nil && cfg.Steering.AllowNetdevMAC && len(f.MAC) == macLen:
		return bytes.Clone(f.MAC), nil
	case mac == nil && cfg.Steering.AllowNetdevMAC:
		return nil, errorOfKind(ErrMAC,
			"the MAC of the netdev of %s cannot be read, which may be in another network "+
				"namespace: set MAC to it", f.Name)
	case f.Netvsc != "" && (mac == nil || !bytes.Equal(mac, f.MAC)):
		return nil, errorOfKind(ErrMAC,
			"%s is the virtual function behind %s (hv_netvsc): the host's switch drops frames for "+
				"MACs it does not know, and broadcasts arrive on %s, so a MAC of our own hears "+
				"nobody; set AllowNetdevMAC to take the function's own MAC %v (Linux then "+
				"receives no unicast by it)",
			f.Name, f.Netvsc, f.Netvsc, f.MAC)
	case mac == nil && f.Virtual:
		return nil, errorOfKind(ErrMAC,
			"%s is a virtual function, whose switch passes only the function's own MAC %v: set "+
				"AllowNetdevMAC (%s then receives no unicast), or have the host switch its spoof "+
				"check off and set another MAC",
			f.Name, f.MAC, f.linuxName())
	case mac == nil:
		return randomMAC(random.From(cfg.Random)), nil
	case len(mac) != macLen:
		return nil, errorOfKind(ErrMAC, "MAC %v has %d bytes, an Ethernet address has 6", mac,
			len(mac))
	case bytes.Equal(mac, make([]byte, macLen)):
		return nil, errorOfKind(ErrMAC, "MAC %v is no address: leave MAC unset for a random one",
			mac)
	case mac[0]&1 != 0:
		return nil, errorOfKind(ErrMAC,
			"MAC %v is a multicast or broadcast address: the lowest bit of the first byte must "+
				"be 0", mac)
	case bytes.Equal(mac, f.MAC) && !cfg.Steering.AllowNetdevMAC:
		return nil, errorOfKind(ErrMAC,
			"MAC %v is the address of %s itself, which would receive no unicast any more: leave "+
				"MAC unset for a random one, or set AllowNetdevMAC if Linux does not need the port",
			mac, f.linuxName())
	}
	return bytes.Clone(mac), nil
}

// linuxName returns what to call the port's Linux interface, which may be in another network
// namespace.
func (f *PortFacts) linuxName() string {
	if f.Netdev == "" {
		return "the Linux interface of " + f.Name
	}
	return f.Netdev
}

// randomMAC returns a random, locally administered unicast address.
func randomMAC(r random.Source) net.HardwareAddr {
	mac := make(net.HardwareAddr, macLen)
	r.Read(mac)
	mac[0] = mac[0]&^1 | 2
	return mac
}

// SetMAC leads the frames of another MAC here in place of those of the one before: for a device
// with the MAC of its netdev, when Linux has changed that. Rules for the new one are there before
// those for the old one go. On an error nothing has changed; it is ErrMAC if mac is no address of
// one host, or if another process has it. It may be called while frames come in, and takes some
// 100 us of the firmware's time for each rule.
func (d *Device) SetMAC(mac net.HardwareAddr) error {
	if len(mac) != macLen || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, macLen)) {
		return errorOfKind(ErrMAC, "MAC %v is no address of one Ethernet host", mac)
	}
	h := &d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := d.Err(); err != nil {
		return err
	}
	before := d.MAC()
	if bytes.Equal(mac, before) {
		return nil
	}
	mac = bytes.Clone(mac)
	d.mac.Store(&mac)
	if err := d.moveToMAC(h); err != nil {
		d.mac.Store(&before)
		return fmt.Errorf("change the MAC of %s from %v to %v: %w", d.Name(), before, mac, err)
	}
	if !d.config.HostMode {
		d.moveDrops(h)
	}
	return d.relistMAC(before)
}

// moveToMAC makes rules for the MAC that there is now, and then ends those before them.
func (d *Device) moveToMAC(h *hashed) error {
	switch {
	case d.config.HostMode:
		return d.moveLeft()
	case d.config.Steering.Promiscuous || h.other == nil:
		return nil // all MACs are ours, or none yet
	}
	next := &hashed{targets: h.targets, rest: h.rest}
	if err := next.claimMAC(d, h.priority, h.restPriority); err != nil {
		return d.explainClaimed(err)
	}
	past := &hashed{rules: h.rules, other: h.other}
	h.rules, h.other = next.rules, next.other
	return past.endRules()
}

// moveLeft is moveToMAC in host mode, where the rules of ports are for any unicast MAC. Rules that
// leave frames to Linux move.
func (d *Device) moveLeft() error {
	var made []flow
	for _, l := range d.left {
		f, err := d.leaveToLinux(l.match())
		if err != nil {
			err = fmt.Errorf("rule for %s: %w", l.what, err)
			for _, f := range made {
				err = errors.Join(err, f.Close())
			}
			return err
		}
		made = append(made, f)
	}
	for i, l := range d.left {
		if err := l.flow.Close(); err != nil {
			d.log.Warn("a rule for the MAC of before is left behind", "device", d.Name(),
				"rule", l.what, "error", err)
		}
		l.flow = made[i]
	}
	return nil
}
