package stack

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// run follows the bond until Close, or until no device is left.
func (b *bond) run() {
	defer b.retry.Stop()
	for b.look() {
		select {
		case <-b.ctx.Done():
			return
		case <-b.events:
		case <-b.wake:
		case <-b.retry.C:
		case <-b.port.LinkChanged():
			notify(b.changed)
		case <-b.port.MTUChanged():
			notify(b.mtu)
		}
		if b.h.stack.clock.Sleep(b.ctx, bondPause) != nil {
			return
		}
	}
}

// look has the link work on the devices there are, as the bond is now, and opens and closes what is
// to be. It is false when no device is left.
func (b *bond) look() bool {
	below, err := b.h.below()
	if err != nil { // the netdev is gone, and the packet sockets end with it
		return true
	}
	b.mu.Lock()
	now, next := b.at, b.plan(below)
	b.mu.Unlock()
	if len(next) == 0 && b.changing(below) {
		b.retry.Reset(hostPause)
		return true
	}
	if len(next) == 0 {
		close(b.done)
		return false
	}
	if !slices.Equal(now, next) && !b.change(next, below) {
		b.retry.Reset(hostPause)
		return true
	}
	b.release()
	b.openMissing(below)
	return true
}

// changing reports whether the bond's address was being changed while below was asked for: a member
// has the one that the bond has by now.
func (b *bond) changing(below hostnet.Below) bool {
	again, err := b.h.below()
	return err == nil && !bytes.Equal(again.MAC, below.MAC) &&
		slices.ContainsFunc(below.Devices, func(p hostnet.Port) bool {
			return bytes.Equal(p.MAC, again.MAC)
		})
}

// plan returns the members that have rings now, and what each is for. mu is held, or nobody else
// knows b.
func (b *bond) plan(below hostnet.Below) (list []rdma.Member) {
	for _, p := range below.Devices {
		m := b.members[p.Name]
		if m == nil || m.device == nil || m.busy || !b.mayHaveRings(p, below) {
			continue
		}
		if err := m.device.Err(); err != nil {
			b.lost = err
			continue
		}
		list = append(list, rdma.Member{Device: m.device, Sends: p.Sends, Receives: p.Receives})
	}
	if len(list) == 0 && b.lost == nil {
		b.lost = fmt.Errorf("no member of bond %s has rings: %w", b.h.name(), dv.ErrNoRDMA)
	}
	return list
}

// mayHaveRings says whether a device may be for rings: its function is mlx5, and it has the bond's
// address.
func (b *bond) mayHaveRings(p hostnet.Port, below hostnet.Below) bool {
	return p.Card != "" && bytes.Equal(p.MAC, below.MAC) && slices.Contains(bondModes, below.Mode)
}

func (b *bond) backendOf(list []rdma.Member, below hostnet.Below) rdma.Backend {
	return rdma.Members{List: list, Spread: below.Mode != bondModes[0], Sockets: b.port}.Backend()
}

// change has the link work on list, and reports whether it does: it may not be on the former
// devices yet, or not any more.
func (b *bond) change(list []rdma.Member, below hostnet.Below) bool {
	to := b.backendOf(list, below)
	changed, err := b.link.SwitchFrom(b.backend, to)
	if err != nil {
		b.refuse(err)
	}
	if err != nil || !changed {
		return false
	}
	b.mu.Lock()
	before := senders(b.at)
	b.at, b.backend = list, to
	b.mu.Unlock()
	after := senders(list)
	b.h.stack.log.Warn("the bond's members have changed", "interface", b.h.name(), "rings",
		names(list, func(rdma.Member) bool { return true }), "sends", after)
	if before != after {
		notify(b.changed)
	}
	return true
}

// senders names the members that send.
func senders(list []rdma.Member) string {
	by := names(list, func(m rdma.Member) bool { return m.Sends })
	if by == "" {
		return "packet sockets"
	}
	return by
}

func names(list []rdma.Member, which func(rdma.Member) bool) string {
	var all []string
	for _, m := range list {
		if which(m) {
			all = append(all, m.Netdev())
		}
	}
	return strings.Join(all, ", ")
}

// refuse takes the devices that the link is not on for ones that it cannot work on.
func (b *bond) refuse(why error) {
	if b.ctx.Err() != nil {
		return
	}
	b.h.stack.log.Warn("a member of the bond cannot be used", "interface", b.h.name(), "error",
		why)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.members {
		if m.device != nil && !b.atWork(m.device) {
			b.closeMember(m)
		}
	}
}

// atWork says whether the link is on a device. mu is held.
func (b *bond) atWork(dev *dv.Device) bool {
	return slices.ContainsFunc(b.at, func(o rdma.Member) bool { return o.Device == dev })
}

// release closes the devices that the link is not on any more.
func (b *bond) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.members {
		if m.device != nil && !m.busy && !b.atWork(m.device) {
			b.closeMember(m)
		}
	}
}

// closeMember closes a member's device, beside run. mu is held.
func (b *bond) closeMember(m *bondMember) {
	if m.busy {
		return
	}
	now := b.h.stack.clock.Now()
	if m.pause = min(2*m.pause, longestBondPause); now.Sub(m.opened) >= steadyBond {
		m.pause = firstBondPause
	}
	dev := m.device
	m.busy, m.device, m.next = true, nil, now.Add(max(m.pause, firstBondPause))
	b.ended.Go(func() {
		err := dev.Close()
		lost := dev.Err() != nil
		b.mu.Lock()
		if m.busy = false; err != nil && !lost {
			b.errs = append(b.errs, err)
		}
		b.mu.Unlock()
		notify(b.wake)
	})
}

// openMissing opens the devices of members that have none, beside run, when it is time.
func (b *bond) openMissing(below hostnet.Below) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, wait := b.h.stack.clock.Now(), time.Duration(0)
	for _, p := range below.Devices {
		m := b.members[p.Name]
		if m == nil {
			m = &bondMember{}
			b.members[p.Name] = m
		}
		if m.device != nil || m.busy || !b.mayHaveRings(p, below) {
			continue
		}
		if left := m.next.Sub(now); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		m.busy = true
		b.ended.Go(func() {
			dev, err := b.open(b.ctx, p.Name)
			b.mu.Lock()
			m.busy = false
			b.note(m, dev, err)
			b.mu.Unlock()
			notify(b.wake)
		})
	}
	if wait > 0 {
		b.retry.Reset(wait)
	}
}

// note takes the result of an attempt to open a member's device. mu is held, or nobody else knows
// b.
func (b *bond) note(m *bondMember, dev *dv.Device, err error) {
	m.device, m.opened = dev, b.h.stack.clock.Now()
	if err != nil {
		if m.refusal != err.Error() && b.ctx.Err() == nil {
			b.h.stack.log.Info("a member of the bond has no rings", "interface", b.h.name(),
				"error", err)
		}
		m.pause = min(max(2*m.pause, firstBondPause), longestBondPause)
		m.next, m.refusal = m.opened.Add(m.pause), err.Error()
		return
	}
	m.refusal = ""
	b.ended.Go(func() {
		for {
			select {
			case <-dev.MTUChanged():
				notify(b.mtu)
				continue
			case <-dev.Done():
				notify(b.wake)
			case <-b.ctx.Done():
			}
			return
		}
	})
}
