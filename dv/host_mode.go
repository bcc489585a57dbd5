package dv

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// In host mode Linux keeps the port's MAC and addresses, and all frames but those of
// Device.AddRule.

// hostMAC is the MAC of a device in host mode.
func hostMAC(cfg *Config, f *PortFacts) (net.HardwareAddr, error) {
	switch {
	case cfg.Promiscuous:
		return nil, errorf(ErrConfig, "Promiscuous takes all frames, HostMode those of AddRule: "+
			"set one of them")
	case f.Representor:
		return nil, errorf(ErrNotSupported, "%s is the representor of a function behind the "+
			"e-switch (switchdev): what a rule here takes is what that function sent, and not "+
			"what came from outside; use the function's own netdev, or that of the uplink",
			f.linux())
	case cfg.MAC == nil && len(f.MAC) != macLen:
		return nil, errorf(ErrMAC,
			"the MAC of the netdev of %s cannot be read, which may be in another network "+
				"namespace: set MAC to it", f.Name)
	case cfg.MAC == nil, bytes.Equal(cfg.MAC, f.MAC):
		return bytes.Clone(f.MAC), nil
	case len(f.MAC) == macLen || len(cfg.MAC) != macLen:
		return nil, errorf(ErrMAC, "in host mode the MAC is that of %s, %v: leave MAC unset",
			f.linux(), f.MAC)
	}
	return bytes.Clone(cfg.MAC), nil
}

// steerByPort makes the targets, and the rules that leave to Linux what no rule of a port is to
// take: fragments, as it depends on the device whether the first of a datagram, which has ports,
// matches a rule for these; and without Config.VLAN frames with a tag, as Linux has an interface of
// its own for each VLAN, and a rule matches frames of all.
func (d *Device) steerByPort() error {
	if err := d.classTargets(); err != nil {
		return err
	}
	if err := d.cleanup.run("rules by port", func() error { return nil },
		d.hashed.closePorts); err != nil {
		return err
	}
	fragments := headerMatch(d.unicast())
	fragments.Fragment = true
	if err := d.leave("fragments", "the first of a datagram may be taken, and the datagram lost",
		fragments); err != nil || d.config.VLAN != 0 {
		return err
	}
	tagged := headerMatch(d.unicast())
	tagged.Tagged = true
	return d.leave("frames with a VLAN tag", "a port's rule takes those of its address, too",
		tagged)
}

// leave leaves frames to Linux for as long as the device is open. Where no rule can, it says in the
// log what that means.
func (d *Device) leave(what, otherwise string, m uverbs.HeaderMatch) error {
	var rule flow
	err := d.cleanup.run("rule for "+what, func() (err error) {
		if rule, err = d.leaveToLinux(m); err == nil {
			d.fixedRules = append(d.fixedRules, RuleInfo{Match: d.describe(what), To: toLinux})
		}
		return err
	}, func() error { return rule.Close() })
	if errors.Is(err, ErrNotSupported) {
		d.log.Warn("no rule can leave "+what+" to Linux: "+otherwise, "device", d.Name(),
			"error", err)
		return nil
	}
	return err
}

// leaveToLinux makes a rule ahead of all others.
func (d *Device) leaveToLinux(m uverbs.HeaderMatch) (flow, error) {
	rule, err := d.context.CreateMissFlow(uint16(PriorityLinux), m)
	if err == nil {
		return rule, nil
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		d.caps.RulesToLinux = false
		err = withKind(ErrNotSupported, err)
	}
	return nil, err
}

// headerMatch is m in the device's own format.
func headerMatch(m uverbs.EthMatch) uverbs.HeaderMatch {
	return uverbs.HeaderMatch{Dst: m.Dst, DstMask: m.DstMask, VLAN: m.VLAN, VLANMask: m.VLANMask}
}

// headerMatch is the frames of r among those of m, in the device's own format.
func (r HostRule) headerMatch(m uverbs.EthMatch) uverbs.HeaderMatch {
	h := headerMatch(m)
	h.Proto, h.Port, h.PortMask = r.Proto, r.Port, r.mask()
	h.IPVersion, h.Addr = 4, r.Addr.AsSlice()
	if r.Addr.Is6() {
		h.IPVersion = 6
	}
	return h
}

// RuleInfo is one rule of a device as the kernel has it.
type RuleInfo struct {
	Priority uint16 `json:"priority"` // 0 to 15; the lowest that matches a frame counts
	Match    string `json:"match"`
	To       string `json:"to"`
	// of the device's rules; 0: it has none, so that others share it
	Tag     uint32 `json:"tag"`
	Counted bool   `json:"counted"` // whether the device counts what it matches
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Rules lists the rules at work, in their order. Each that is counted is asked from the device,
// which takes it some 10 us.
func (d *Device) Rules() []RuleInfo {
	h := &d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.Err() != nil {
		return nil // they are gone, or going
	}
	list := slices.Clone(d.fixedRules)
	for i := range h.rules {
		c := classes()[i]
		list = append(list, RuleInfo{Priority: c.priority + h.priority, To: "queues",
			Match: d.describe(c.name), Tag: d.flowTag})
	}
	if h.other != nil {
		list = append(list, RuleInfo{Priority: h.restPriority, To: "queue 0",
			Match: d.describe(classOther().name), Tag: d.flowTag})
	}
	for _, r := range h.byPort {
		info := RuleInfo{Priority: uint16(r.rule.Priority), To: "queues", Tag: d.flowTag,
			Match: d.describe(r.rule.String()), Counted: r.counts != nil}
		if r.rule.Priority == PriorityLinux {
			info.To, info.Tag = toLinux, 0
		}
		hits := r.hits()
		info.Packets, info.Bytes = hits.Packets, hits.Bytes
		list = append(list, info)
	}
	slices.SortStableFunc(list, func(a, b RuleInfo) int {
		return int(a.Priority) - int(b.Priority)
	})
	return list
}

// toLinux is RuleInfo.To of a rule that leads to Linux.
const toLinux = "Linux"

// describe adds to what a rule matches what all have in common.
func (d *Device) describe(what string) string {
	if d.config.Promiscuous {
		what += ", any MAC"
	} else {
		what = fmt.Sprintf("%s, MAC %v", what, d.config.MAC)
	}
	if d.config.VLAN != 0 {
		what += fmt.Sprintf(", VLAN %d", d.config.VLAN)
	}
	return what
}
