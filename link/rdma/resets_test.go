package rdma

import (
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// TestResets counts each connection that is reset once, from NoteResets on, and no refused SYN.
func TestResets(t *testing.T) {
	const rst, ack = header.TCPFlagRst, header.TCPFlagAck
	key := random.Source{}.HashKey()
	e := new(Endpoint)
	send := func(port uint16, seq uint32, flags header.TCPFlags) {
		pkt := outPacket(tcpFrame{Src: ourMAC, Dst: peerMAC, From: 1, To: 2,
			Ports: [2]uint16{80, port}, Seq: seq, Flags: flags, TTL: 64})
		defer pkt.DecRef()
		p := hdr.ParseSent(pkt, key)
		e.resets.sent(&p)
	}
	send(1, 5, rst|ack)
	e.NoteResets()
	for _, c := range []struct {
		name  string
		port  uint16
		seq   uint32
		flags header.TCPFlags
		want  Resets
	}{
		{"known", 2, 5, rst | ack, Resets{Known: 1}},
		{"refused", 3, 0, rst | ack, Resets{Known: 1}},
		{"unknown", 4, 7, rst, Resets{1, 1}},
		{"known before", 2, 9, rst, Resets{1, 1}},
		{"another", 5, 9, rst, Resets{1, 2}},
	} {
		if send(c.port, c.seq, c.flags); e.Resets() != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, e.Resets(), c.want)
		}
	}
}
