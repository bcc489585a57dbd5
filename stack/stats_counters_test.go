package stack_test

import (
	"io"
	"maps"
	"net"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/netpair"
)

// TestCounters follows a connection through the counters.
func TestCounters(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	s, c := pair(t, server, client)
	c.Write([]byte("x"))
	s.Read(make([]byte, 1))
	if _, err := client.Dial("tcp", at(netpair.ServerIP4, &net.TCPAddr{Port: 9})); err == nil {
		t.Fatal("port 9 answers")
	}
	eventually(t, "the reset counted: netstack does it after it has sent it", func() bool { return server.Stats().TCPResetsSent > 0 })
	st, ct := server.Stats(), client.Stats()
	if st.TCPAccepted != 1 || st.TCPCurrentEstablished != 1 || ct.TCPDialed != 2 || ct.TCPFailedDials != 1 || st.TCPResetsSent != 1 || st.RxPackets == 0 || st.TxBytes == 0 {
		t.Errorf("server %+v\nclient %+v", st, ct)
	}
	names := map[string]uint64{}
	for name, v := range server.Counters() {
		names[name] = v
	}
	if len(names) < 150 || names["TCP.PassiveConnectionOpenings"] != 1 || names["TCP.ResetsSent"] != 1 {
		t.Errorf("%d counters, openings %d, resets %d", len(names), names["TCP.PassiveConnectionOpenings"], names["TCP.ResetsSent"])
	}
	for range server.Counters() {
		break // a caller may stop early
	}
	for name, v := range server.Gauges() {
		if _, counter := names[name]; counter {
			t.Errorf("%s is a gauge and a counter", name)
		}
		names[name] = v
	}
	if names["TCP.CurrentEstablished"] != 1 || len(maps.Collect(server.Gauges())) != 7 {
		t.Errorf("gauges %v", maps.Collect(server.Gauges()))
	}
}

// TestHeldACKs: an ACK that was not sent is not counted as sent.
func TestHeldACKs(t *testing.T) {
	server, client, _ := cards(t, 1, wire.FaultConfig{})
	s, c := pair(t, server, client)
	buf := make([]byte, 1)
	for range 100 { // the ACK of what came rides on what goes back
		for _, conn := range []net.Conn{c, s} {
			_, err := conn.Write(buf)
			must(t, err)
			other := map[net.Conn]net.Conn{c: s, s: c}[conn]
			_, err = io.ReadFull(other, buf)
			must(t, err)
		}
	}
	if acks := server.ACKStats(); acks.Saved < 50 {
		t.Fatalf("%+v: nothing to be counted wrongly", acks)
	}
	eventually(t, "as many packets counted as sent as the link was given", func() bool {
		names := maps.Collect(server.Counters())
		sent := server.LinkStats().TxPackets
		return server.Stats().TxPackets == sent && names["NICs.Tx.Packets"] == sent && names["Link.TxPackets"] == sent &&
			names["ACK.Saved"] == server.ACKStats().Saved
	})
}
