//go:build linux

package attack

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// offer is what a DHCP server sends besides the address. Times in seconds.
type offer struct {
	lease, t1, t2 uint32
	mask, router  [4]byte
}

// requestLimit is the most messages that a client may send: a DISCOVER and a REQUEST at each
// attempt, 0, 1, 3, 7 and 15 s after its start, and then every 16 s (RFC 2131 section 4.1 demands
// growing delays). A client with a lease sends fewer.
func requestLimit() int32 { return 2 * (5 + int32(*attackTime/(16*time.Second))) }

// TestHostileDHCP: a DHCP server gives leases that make the client renew continuously, or an
// impossible subnet or router.
func TestHostileDHCP(t *testing.T) {
	mask, router := [4]byte{255, 255, 255, 0}, [4]byte{192, 0, 2, 1}
	for _, tt := range []struct {
		name    string
		offer   offer
		refused bool // by a line in the log
		judged  bool // clients are served with the valid part of the lease
	}{
		{"T1 and T2 zero", offer{3600, 0, 0, mask, router}, false, true},
		{"T1 after the end", offer{3600, 1 << 31, 1 << 31, mask, router}, false, true},
		{"lease zero", offer{0, 0, 0, mask, router}, false, false},
		{"lease of a second", offer{1, 0, 0, mask, router}, false, false},
		{"mask /0", offer{3600, 1800, 3150, [4]byte{}, router}, true, false},
		{"mask with a hole", offer{3600, 1800, 3150, [4]byte{255, 0, 255, 0}, router}, true, false},
		{"router is ourselves", offer{3600, 1800, 3150, mask, [4]byte{192, 0, 2, 10}}, true, true},
		{"router off the subnet", offer{3600, 1800, 3150, mask, [4]byte{10, 9, 8, 7}}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newCable(t)
			p := w.port()
			f := newForge(t, p)
			var asked atomic.Int32
			go giveLeases(p, f, tt.offer, &asked)
			r := row{attack: "DHCP: " + tt.name, during: -1, after: -1}
			if w.tryStart("http", "--address", "dhcp", "--root", site(t)) && tt.judged {
				r = w.under(r.attack, w.browsers(), func(done <-chan struct{}) { <-done })
			} else if tt.judged {
				t.Error("the server did not start")
			} else {
				time.Sleep(*attackTime) // the time in which messages are counted
			}
			if n := asked.Load(); n > requestLimit() {
				t.Errorf("%d messages were sent, want at most %d", n, requestLimit())
			}
			if text, _ := w.log.written(); tt.refused &&
				!bytes.Contains([]byte(text), []byte("WARN")) {
				t.Errorf("nothing in the log says what was refused")
			}
			r.note = fmt.Sprintf("%d messages", asked.Load())
			w.judge(r)
		})
	}
}

// giveLeases answers each DISCOVER and REQUEST with the offer until the port is closed, and counts
// them.
func giveLeases(p *lab.Port, f *forge, o offer, asked *atomic.Int32) {
	buf := make([]byte, 2048)
	for {
		b, err := p.Recv(buf, time.Now().Add(time.Minute))
		if err != nil {
			return
		}
		if len(b) < 285 || b[12] != 8 || b[23] != 17 || binary.BigEndian.Uint16(b[36:]) != 67 {
			continue
		}
		asked.Add(1)
		kind := byte(2) // OFFER
		if messageType(b[42:]) == 3 {
			kind = 5 // ACK
		}
		p.Send(f.lease(b[42:], kind, o))
	}
}

// messageType is option 53 of a DHCP message (RFC 2132 section 9.6).
func messageType(m []byte) byte {
	for i := 240; i+2 < len(m) && m[i] != 255; {
		if m[i] == 0 {
			i++
			continue
		}
		if m[i] == 53 {
			return m[i+2]
		}
		i += 2 + int(m[i+1])
	}
	return 0
}

// lease is a server's answer to a DHCP message (RFC 2131 section 2), sent as broadcast.
func (f *forge) lease(request []byte, kind byte, o offer) []byte {
	m := make([]byte, 240)
	m[0], m[1], m[2] = 2, 1, 6
	copy(m[4:8], request[4:8]) // xid
	m[10] = 0x80
	copy(m[16:], addr(server4).AsSlice())
	copy(m[28:], request[28:44]) // chaddr
	copy(m[236:], []byte{99, 130, 83, 99})
	m = append(m, 53, 1, kind, 54, 4)
	m = append(m, addr(client4).AsSlice()...)
	for code, seconds := range map[byte]uint32{51: o.lease, 58: o.t1, 59: o.t2} {
		m = binary.BigEndian.AppendUint32(append(m, code, 4), seconds)
	}
	m = append(append(m, 1, 4), o.mask[:]...)
	m = append(append(m, 3, 4), o.router[:]...)
	m = append(m, 255)
	m = append(m, make([]byte, max(0, 300-len(m)))...)
	frame := f.udpFrom(addr(client4), 67, 68, m)
	return f.broadcast(frame)
}

// broadcast turns a datagram to the server into a broadcast: the addresses, and the checksums that
// cover them.
func (f *forge) broadcast(frame []byte) []byte {
	copy(frame, net.HardwareAddr{255, 255, 255, 255, 255, 255})
	ip := frame[14:34]
	copy(ip[16:], []byte{255, 255, 255, 255})
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^sum(0, ip))
	frame[40], frame[41] = 0, 0 // a UDP checksum of zero is none
	return frame
}
