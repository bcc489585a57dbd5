package simnic

import (
	"slices"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Destination holds what a classifier does with a frame: it sends a copy to a TIR, or drops
// it, or only counts it.
type Destination struct {
	TIR   *TIR
	Tag   uint32     // 24 bits, appears in the completion
	Drop  bool       // a rule ends the classification here
	Count *FlowCount // counts the frame; nil: not counted
}

// Classifier appends to out the destinations of a frame with this key; none means that it has no
// receiver. It is called from many goroutines at once and must not keep its arguments.
type Classifier func(k *MatchKey, out []Destination) []Destination

// SetClassifier replaces the netdev port and the leftover rules by c, for a driver that builds the
// flow tables of the netdev itself. Frames in progress may still use the previous classifier. nil
// restores the netdev port.
func (n *NIC) SetClassifier(c Classifier) {
	if c == nil {
		n.classifier.Store(nil)
		return
	}
	n.classifier.Store(&c)
}

// SetSniffers gives rx a copy of every frame received from the wire, and tx one of every frame that
// the netdev or a user queue sends. Their other delivery is unchanged. Either may be nil. A
// sniffer's TIR gets what its own transport domain sends, too.
func (n *NIC) SetSniffers(rx, tx Classifier) {
	for i, c := range []Classifier{rx, tx} {
		if c == nil {
			n.sniffers[i].Store(nil)
		} else {
			n.sniffers[i].Store(&c)
		}
	}
}

// Members of NIC.sniffers.
const sniffReceived, sniffSent = 0, 1

// hasSniffers reports whether deliverToSniffers has anything to do.
func (n *NIC) hasSniffers(direction int) bool {
	return n.sniffers[direction].Load() != nil || len(n.steering.now.Load().sniff) != 0
}

// deliverToSniffers delivers copies of a frame to the sniffers of one direction and to the sniffer
// rules.
func (n *NIC) deliverToSniffers(b *rxBurst, direction int, f *frame.Frame) {
	c, rules := n.sniffers[direction].Load(), n.steering.now.Load().sniff
	o := frameOrigin{owner: ownerSlice}
	if direction == sniffReceived {
		o.owner = ownerWire
	}
	b.waited = nil // a sniffer does not delay senders
	b.p = frame.Parse(f.Data)
	matchKey(&b.p, f.Data, &b.key)
	kind := castOf(macBits(f.Data))
	if c != nil {
		n.deliverByClassifier(*c, b, o, f, kind)
	}
	n.walkTables(b, rules, o, f, kind)
}

// deliverByClassifier delivers a frame to the destinations that the classifier returns.
func (n *NIC) deliverByClassifier(c Classifier, b *rxBurst, o frameOrigin, f *frame.Frame,
	kind cast) (copies int) {
	b.found = c(&b.key, b.found[:0])
	for _, d := range b.found {
		if d.Count != nil {
			d.Count.countFrame(f)
		}
		switch {
		case d.TIR != nil:
			b.routed += f.Packets()
			n.toTIR(b, d.TIR, o, f, kind, d.Tag)
			copies++
		case d.Drop:
			b.routed += f.Packets()
			n.counters.addTo(ctrFlowDropped, f.Packets())
			copies++
		}
	}
	return copies
}

// SetLocalMACs sets, for a classifier, the unicast addresses to which it delivers frames by address
// alone: such frames of the port's own queues are delivered here and do not leave.
func (n *NIC) SetLocalMACs(macs [][6]byte) {
	var sorted []uint64
	for _, m := range macs {
		sorted = append(sorted, macBits(m[:]))
	}
	slices.Sort(sorted)
	n.localMACs.Store(&sorted)
}

// staysInside reports whether a frame that the netdev or a user queue sends is offered to the
// port's other receivers.
func (n *NIC) staysInside(dst uint64, kind cast, t *tables) bool {
	if !n.eswitch.passesTo(dst, kind) {
		return false
	}
	if kind != unicast {
		return n.loopback.multicast.Load()
	}
	if !n.loopback.unicast.Load() {
		return false
	}
	if n.classifier.Load() == nil {
		return dst == n.mac.Load() || t.requiresMAC(dst)
	}
	_, ok := slices.BinarySearch(*n.localMACs.Load(), dst)
	return ok || t.requiresMAC(dst)
}
