package simnic

import (
	"slices"

	"github.com/rdma-netstack/rdma-netstack/dv/simnic/frame"
)

// Destination is what a classifier does with a frame: it sends a copy to a TIR, or drops
// it, or only counts it.
type Destination struct {
	TIR   *TIR
	Tag   uint32     // 24 bits, appears in the completion
	Drop  bool       // a rule wants the frame to end here
	Count *FlowCount // counts the frame; nil: nothing does
}

// Classifier appends to out where a frame with this key goes; nothing means that
// it has no receiver. It is called from many goroutines at once and must not keep
// its arguments.
type Classifier func(k *MatchKey, out []Destination) []Destination

// SetClassifier puts c in the place of the netdev port and the leftover rules,
// for a face whose driver builds the flow tables of the netdev itself. Frames on
// their way may still meet the one before. nil restores the netdev port.
func (n *NIC) SetClassifier(c Classifier) {
	if c == nil {
		n.classifier.Store(nil)
		return
	}
	n.classifier.Store(&c)
}

// SetSniffers has rx see a copy of every frame that comes in from the wire, and tx of every
// frame that an owner of the port sends, besides what else becomes of them. Either may be
// nil. A sniffer's TIR gets what its own transport domain sends, too.
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

// sniff shows a frame to the sniffers of one direction.
func (n *NIC) sniff(b *rxBurst, direction int, f *frame.Frame) {
	c := n.sniffers[direction].Load()
	if c == nil {
		return
	}
	o := frameOrigin{owner: ownerSlice}
	if direction == sniffReceived {
		o.owner = ownerWire
	}
	b.waited = nil // a sniffer holds nobody up
	b.p = frame.Parse(f.Data)
	matchKey(&b.p, f.Data, &b.key)
	n.classify(*c, b, o, f, castOf(macBits(f.Data)))
}

// classify delivers a frame to whom the classifier says.
func (n *NIC) classify(c Classifier, b *rxBurst, o frameOrigin, f *frame.Frame,
	kind cast) (copies int) {
	b.found = c(&b.key, b.found[:0])
	for _, d := range b.found {
		if d.Count != nil {
			d.Count.add(f)
		}
		switch {
		case d.TIR != nil:
			b.routed += f.Packets()
			n.toTIR(b, d.TIR, o, f, kind, d.Tag)
			copies++
		case d.Drop:
			b.routed += f.Packets()
			n.counters.add(ctrFlowDropped, f.Packets())
			copies++
		}
	}
	return copies
}

// SetLocalMACs says, for a classifier, to which unicast addresses it sends frames
// because of their address alone: such frames of the port's own queues are
// delivered here and do not leave.
func (n *NIC) SetLocalMACs(macs [][6]byte) {
	var sorted []uint64
	for _, m := range macs {
		sorted = append(sorted, macBits(m[:]))
	}
	slices.Sort(sorted)
	n.localMACs.Store(&sorted)
}

// inside reports whether a frame of an owner of the port is offered to the others.
func (n *NIC) inside(dst uint64, kind cast, t *tables) bool {
	if !n.eswitch.passes(dst, kind) {
		return false
	}
	if kind != unicast {
		return n.loopback.multicast.Load()
	}
	if !n.loopback.unicast.Load() {
		return false
	}
	if n.classifier.Load() == nil {
		return dst == n.mac.Load() || t.local(dst)
	}
	_, ok := slices.BinarySearch(*n.localMACs.Load(), dst)
	return ok || t.local(dst)
}
