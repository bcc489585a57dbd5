package stack

import (
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// FuzzControlMessages reads bytes as control messages: each lies within them, behind the one
// before, and what a send makes of them has values that headers can hold.
func FuzzControlMessages(f *testing.F) {
	for _, m := range [][3]int{{levelIP, typeTOS, 4}, {levelIP, typePacketInfo4, packetInfo4},
		{levelV6, typePacketInfo6, packetInfo6}, {levelUDP, typeSegment, 2},
		{levelV6, typeHopLimit, 4}} {
		w := controlWriter{b: make([]byte, alignControl(controlHeader+m[2]))}
		w.putMessage(m[0], m[1], make([]byte, m[2]))
		f.Add(w.b)
		f.Add(append(w.b, w.b...))
	}
	f.Fuzz(func(t *testing.T, oob []byte) {
		for rest := oob; ; {
			m, next, ok, e := nextControl(rest)
			if !ok {
				if e == 0 && len(rest) >= controlHeader {
					t.Fatalf("%x is neither a message nor an error", rest)
				}
				break
			}
			if len(next) > len(rest)-controlHeader-len(m.data) {
				t.Fatalf("%x: a message of %d bytes leaves %d", rest, len(m.data), len(next))
			}
			rest = next
		}
		for _, c := range []*UDPConn{{family: inet4}, {family: inet6}, {}} {
			for _, to := range []tcpip.Address{tcpip.AddrFrom4([4]byte{192, 0, 2, 1}),
				tcpip.AddrFrom16([16]byte{0x20, 1})} {
				o, e := c.optionsOf(oob, to)
				if e == 0 && (o.ttl < -1 || o.ttl > 255 || o.segment < 0 || o.segment > 0xffff) {
					t.Fatalf("%x: %+v", oob, o)
				}
				if e != 0 {
					continue
				}
				for kept := o.forKernel(to.Len() == 16); ; {
					_, next, ok, e := nextControl(kept)
					if e != 0 {
						t.Fatalf("%x: the kernel gets %x", oob, kept)
					}
					if kept = next; !ok {
						break
					}
				}
				classAndTTL(oob)
			}
		}
	})
}
