package stack

import (
	"errors"
	"syscall"
	"testing"
	"time"

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

// TestSettersByName: those beside control messages do what Linux's options do, or refuse.
func TestSettersByName(t *testing.T) {
	r := newDirectRig(t, false)
	from, to, at := r.conns(t, "udp4", "192.0.2.1:7", "192.0.2.2:53")
	for _, bad := range []int{-1, 4} {
		if err := from.SetECN(bad); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("SetECN(%d): %v", bad, err)
		}
	}
	must(t, from.SetTrafficClass(46<<2))
	must(t, from.SetECN(2))
	must(t, to.SetReceiveTOS(true))
	must(t, to.SetReceiveTTL(true))
	must(t, from.SetTTL(9))
	_, err := from.WriteToUDPAddrPort([]byte("x"), at)
	must(t, err)
	oob := make([]byte, 100)
	must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
	_, nn, _, _, err := to.ReadMsgUDP(make([]byte, 10), oob)
	must(t, err)
	ttl, rest, _, _ := nextControl(oob[:nn])
	tos, _, _, _ := nextControl(rest)
	if ttl.kind != typeTTL || ttl.data[0] != 9 || tos.kind != typeTOS || tos.data[0] != 46<<2|2 {
		t.Errorf("control messages %x", oob[:nn])
	}
	for _, whole := range []bool{true, false} {
		must(t, from.SetDontFragment(whole))
		_, err := from.WriteToUDPAddrPort(make([]byte, 3000), at)
		if errors.Is(err, syscall.EMSGSIZE) != whole || !whole && err != nil {
			t.Errorf("SetDontFragment(%v): %v", whole, err)
		}
	}
}
