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
		pkt := tcpFrame{Src: ourMAC, Dst: peerMAC, From: 1, To: 2,
			Ports: [2]uint16{80, port}, Seq: seq, Flags: flags, TTL: 64}.Packet()
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

// TestResetsAfterTheEnd: a RST to a peer that had ended its connection here cuts nothing; one to a
// peer whose FIN was for no connection here does, and so does one after the port was used again.
func TestResetsAfterTheEnd(t *testing.T) {
	key := random.Source{}.HashKey()
	e := new(Endpoint)
	e.NoteResets()
	segment := func(port uint16, flags header.TCPFlags) hdr.Segment {
		pkt := tcpFrame{Src: ourMAC, Dst: peerMAC, From: 1, To: 2,
			Ports: [2]uint16{80, port}, Seq: 7, Flags: flags, TTL: 64}.Packet()
		t.Cleanup(pkt.DecRef)
		return hdr.ParseSent(pkt, key)
	}
	for _, c := range []struct {
		name  string
		here  bool
		flags []header.TCPFlags // of what comes
		want  Resets
	}{
		{"ended here", true, []header.TCPFlags{header.TCPFlagFin | header.TCPFlagAck}, Resets{}},
		{"not here", false, []header.TCPFlags{header.TCPFlagFin | header.TCPFlagAck},
			Resets{Unknown: 1}},
		{"begun anew", true, []header.TCPFlags{header.TCPFlagFin | header.TCPFlagAck,
			header.TCPFlagSyn}, Resets{Unknown: 2}},
	} {
		port := uint16(len(c.name))
		for _, flags := range c.flags {
			s := segment(port, flags)
			e.resets.received(&s, c.here)
		}
		s := segment(port, header.TCPFlagRst)
		if e.resets.sent(&s); e.Resets() != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, e.Resets(), c.want)
		}
	}
}
