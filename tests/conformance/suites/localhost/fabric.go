package localhost

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// fabric connects ports as a switch that learns where addresses are. A frame reaches the receiver
// on the goroutine of its sender, as across wire.Pair.
type fabric struct {
	ends    []wire.Wire
	learned sync.Map      // of type [6]byte, to int: the end behind which a MAC address is
	carried atomic.Uint64 // frames of TCP and UDP
}

// newFabric returns a switch and what to connect to its ports.
func newFabric(ports int) (f *fabric, outside []wire.Wire, err error) {
	f = &fabric{}
	for i := range ports {
		in, out := wire.Pair()
		f.ends, outside = append(f.ends, in), append(outside, out)
		if err := in.Start(func(all []frame.Frame) { f.forward(i, all) }); err != nil {
			return nil, nil, err
		}
	}
	return f, outside, nil
}

// forward carries frames that came in at a port, in order. What nobody receives is lost.
func (f *fabric) forward(from int, all []frame.Frame) {
	for i := range all {
		if isOfSockets(all[i].Data) {
			f.carried.Add(1)
		}
	}
	for len(all) > 0 {
		source, to := [6]byte(all[0].Data[6:]), [6]byte(all[0].Data)
		if was, ok := f.learned.Load(source); !ok || was != from {
			f.learned.Store(source, from)
		}
		n := 1
		for n < len(all) && [6]byte(all[n].Data) == to {
			n++
		}
		f.send(from, to, all[:n])
		all = all[n:]
	}
}

// send carries frames to the port of an address, or to all others where it is not known.
func (f *fabric) send(from int, to [6]byte, some []frame.Frame) {
	const group = 1
	if at, ok := f.learned.Load(to); ok && to[0]&group == 0 {
		_, _ = f.ends[at.(int)].Send(some)
		return
	}
	for i, end := range f.ends {
		if i != from {
			_, _ = end.Send(some)
		}
	}
}

// isOfSockets reports whether a frame is one of TCP or UDP, behind an IP header without options.
func isOfSockets(b []byte) bool {
	const ipv4, ipv6, ethernet = 0x800, 0x86dd, 14
	if len(b) < ethernet+20 {
		return false
	}
	var protocol byte
	switch binary.BigEndian.Uint16(b[12:]) {
	case ipv4:
		protocol = b[ethernet+9]
	case ipv6:
		protocol = b[ethernet+6]
	}
	return protocol == 6 || protocol == 17 // IANA, protocol numbers
}
