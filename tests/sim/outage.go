package sim

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// deviceFault is faultOf for faults of a device as a whole.
func (w *world) deviceFault(f FaultPlan) (begin func() (end func())) {
	h := w.ours(f.Host)
	switch f.Kind {
	case Flapping:
		return func() func() { return w.flap(h.slot.card(), f.Delay) }
	case TakenBack:
		return func() func() { return w.takeBack(h) }
	case NetdevGone:
		return func() func() {
			h.netdev.setGone(true)
			return func() { h.netdev.setGone(false) }
		}
	case NetdevDown:
		return func() func() {
			h.netdev.setDown(true)
			return func() { h.netdev.setDown(false) }
		}
	case Resized:
		return func() func() {
			w.resize(f.MTU)
			return func() { w.resize(w.plan.Net.MTU) }
		}
	case Readdressed:
		return func() func() {
			w.readdress(h, 1)
			return func() { w.readdress(h, 0) }
		}
	case Moved:
		return func() func() { return w.move(h, f.Lease) }
	case Remade, Renamed, AddressAdded, AddressLost, Rerouted:
		return w.kernelFault(h, f)
	}
	return func() func() {
		held := h.early()
		h.beside.alone.Store(h.kernel != nil)
		h.slot.remove()
		if w.plan.carried(f.Host) {
			w.clock.AfterFunc(fallbackSlack, func() { w.note(h.fellBack()) })
		}
		if limit := w.plan.maxOutage(f.Host); f.For > limit && !h.plan.Fallback {
			w.clock.AfterFunc(limit+expirySlack, func() { w.note(h.expired()) })
		}
		return func() {
			if w.plan.carried(f.Host) {
				w.note(h.carried())
			}
			w.note(h.slot.empty())
			h.slot.refuse(f.Count)
			if f.Kind == Replaced {
				w.note(h.replace(otherCard(h.plan.Card)))
			} else {
				h.slot.restore()
			}
			h.beside.alone.Store(false)
			w.note(h.recover(held))
			w.clock.AfterFunc(f.settling(), func() { w.note(h.back()) })
		}
	}
}

// followSlack is how long after a change of its netdev's MTU a stack may have the one before.
const followSlack = time.Millisecond

// resize gives all hosts another MTU, at one time: what is on its way and too long is lost.
func (w *world) resize(mtu int) {
	for _, h := range w.hosts {
		o, ours := h.(*ourHost)
		if !ours {
			continue
		}
		w.note(o.resize(mtu))
		w.clock.AfterFunc(o.followSlack(), func() { w.note(o.resized(mtu)) })
	}
}

// resize gives the port and the netdev another MTU.
func (h *ourHost) resize(mtu int) error {
	h.mtu = mtu
	if h.netdev != nil {
		h.netdev.setMTU(mtu)
	}
	if h.kernel != nil {
		h.kernel.change(func() { h.kernel.mtu = mtu })
		return h.slot.card().SetMTU(mtu)
	}
	for _, d := range h.stack.Devices() {
		d.SetNetdevMTU(mtu)
	}
	return h.slot.card().SetMTU(mtu)
}

// resized says what is wrong with a host whose netdev has had an MTU for followSlack.
func (h *ourHost) resized(mtu int) error {
	want := mtu
	for _, d := range h.stack.Devices() {
		want = min(want, d.MTULimit())
	}
	if got := h.stack.MTU(); got != want && h.mtu == mtu {
		return fmt.Errorf("host %d: an MTU of %d, its netdev has %d: want %d", h.index, got, mtu,
			want)
	}
	return nil
}

// readdressSlack limits how long after a change of its netdev's MAC a stack may have the one
// before.
const readdressSlack = 100 * time.Millisecond

// readdress gives the netdev of a host its first MAC address, or another one. What is on its way to
// the one before is lost.
func (w *world) readdress(h *ourHost, generation byte) {
	mac := hardware(h.index)
	mac[1] = generation
	h.netdevMAC.Store(&mac)
	if h.kernel != nil {
		h.kernel.setHardware(mac)
		w.note(h.slot.card().SetMAC(mac))
		w.clock.AfterFunc(readdressSlack, func() { w.note(h.readdressed(mac)) })
		return
	}
	for _, d := range h.stack.Devices() {
		d.SetNetdevMAC(mac)
	}
	w.clock.AfterFunc(readdressSlack, func() { w.note(h.readdressed(mac)) })
}

// readdressed says what is wrong with a host whose netdev has had a MAC for readdressSlack.
func (h *ourHost) readdressed(mac net.HardwareAddr) error {
	if !bytes.Equal(*h.netdevMAC.Load(), mac) {
		return nil // it has another one by now
	}
	if got := h.stack.HardwareAddr(); !bytes.Equal(got, mac) {
		return fmt.Errorf("host %d: the MAC %v, its netdev has %v", h.index, got, mac)
	}
	for _, d := range h.stack.Devices() {
		if got := d.MAC(); !bytes.Equal(got, mac) {
			return fmt.Errorf("host %d: a device with the MAC %v, its netdev has %v", h.index, got,
				mac)
		}
	}
	return nil
}

// otherCard is a card of another kind.
func otherCard(card string) string {
	if card == "cx5" {
		return "cx6dx"
	}
	return "cx5"
}

// expirySlack is how long after the limit of an outage connections may still be there.
const expirySlack = time.Second

// fallbackSlack is how long after the loss of a device frames may not pass. An outage is longer.
const fallbackSlack = time.Millisecond

// fellBack says what is wrong with a host whose device has been away for fallbackSlack.
func (h *ourHost) fellBack() error {
	if s := h.stack.LinkStatus(); s.State == failover.Up || s.Backend != rdma.BackendPacket {
		return fmt.Errorf("host %d: the device is away, its packet sockets are there, and %+v",
			h.index, s)
	}
	h.muted.Store(h.netdev.counts().Muted)
	return nil
}

// carried says what is wrong with a host that has fallen back to its packet sockets.
func (h *ourHost) carried() error {
	if n := h.netdev.counts().Muted - h.muted.Load(); n > 0 {
		return fmt.Errorf("host %d: its packet sockets are muted, and %d frames came", h.index, n)
	}
	return nil
}

// expired says what is wrong with a host whose device has been away for longer than it may.
func (h *ourHost) expired() error {
	if s := h.stack.LinkStatus(); !s.Expired {
		return fmt.Errorf("host %d: the device has been away for too long, and %+v", h.index, s)
	}
	for _, c := range h.connections() {
		if !strings.HasSuffix(c, "LISTEN") {
			return fmt.Errorf("host %d: %v after the limit of an outage it has %s", h.index,
				expirySlack, c)
		}
	}
	return nil
}

// early reports whether a device that is lost now has worked for less than the grace period.
func (h *ourHost) early() bool {
	s := h.stack.LinkStatus()
	return h.plan.Grace > 0 && s.State == failover.Up && s.Returns > 0 &&
		h.clock.Now().Sub(s.Since) < h.plan.Grace
}

// recover has the device looked for that was left alone because it was lost early, and says what is
// wrong if it was not.
func (h *ourHost) recover(early bool) error {
	if s := h.stack.LinkStatus(); s.Held != early {
		return fmt.Errorf("host %d: lost within the grace period %v, and %+v", h.index, early, s)
	}
	if early {
		h.stack.Recover()
	}
	return nil
}

// back says what is wrong with a host whose device has been there again for long enough.
func (h *ourHost) back() error {
	if s := h.stack.LinkStatus(); s.State != failover.Up || s.Backend != rdma.BackendRings ||
		s.Expired {
		return fmt.Errorf("host %d: the device is there again, and %+v", h.index, s)
	}
	if h.netdev != nil && h.kernel == nil {
		return h.netdev.quiet()
	}
	return nil
}

// note takes note of a violated invariant, if err is one.
func (w *world) note(err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = append(w.failed, err)
}

// flap has a link go down and come up again and again, until end.
func (w *world) flap(nic *simnic.NIC, pause time.Duration) (end func()) {
	var over atomic.Bool
	var set func(up bool)
	set = func(up bool) {
		if !over.Load() {
			nic.SetLink(up)
			w.clock.AfterFunc(pause, func() { set(!up) })
		}
	}
	set(false)
	return func() {
		over.Store(true)
		nic.SetLink(true)
	}
}

// cuts reports whether connections of the job may be lost: to an outage that lasts for longer than
// connections wait, or with the address of an end.
func (j *job) cuts() bool { return j.w.plan.cuts() || j.moves() }

// cutOff reports whether that is so of a connection made at this time.
func (j *job) cutOff(made time.Duration) bool { return j.cuts() && made < j.w.calm }

// handshakeLost reports whether the end of the handshake of a connection made at this time may be
// lost to an outage: netstack gives up a connection in SYN-RECEIVED when its neighbour does not
// answer, while its peer has a connection. Neighbours are asked for anew after a link was down.
// Or its process has not waited for it any longer.
func (w *world) handshakeLost(made time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return (w.plan.loses() || w.plan.has(LinkDown, Flapping)) && made < w.calm || made < w.cut
}

// cutHandshakes has handshakes lost that have begun.
func (w *world) cutHandshakes() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = w.clock.now()
}

// afterCutOff makes one more connection after an outage that cut others off: the listener is to
// serve it.
func (j *job) afterCutOff(t *task) error {
	if !j.cuts() && !j.w.plan.kills() {
		return nil
	}
	t.sleep(j.w.calm + time.Second - j.w.clock.now())
	if err := j.connection(t, j.plan.Count); err != nil {
		return fmt.Errorf("connection after the outage: %w", err)
	}
	return nil
}
