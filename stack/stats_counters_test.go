package stack_test

import (
	"io"
	"maps"
	"net"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
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
	eventually(t, "the reset counted: netstack does it after it has sent it",
		func() bool { return server.Stats().TCPResetsSent > 0 })
	st, ct := server.Stats(), client.Stats()
	if st.TCPAccepted != 1 || st.TCPCurrentEstablished != 1 || ct.TCPDialed != 2 ||
		ct.TCPFailedDials != 1 || st.TCPResetsSent != 1 || st.RxPackets == 0 || st.TxBytes == 0 {
		t.Errorf("server %+v\nclient %+v", st, ct)
	}
	names := map[string]uint64{}
	for name, v := range server.Counters() {
		names[name] = v
	}
	if len(names) < 150 || names["TCP.PassiveConnectionOpenings"] != 1 ||
		names["TCP.ResetsSent"] != 1 {
		t.Errorf("%d counters, openings %d, resets %d", len(names),
			names["TCP.PassiveConnectionOpenings"], names["TCP.ResetsSent"])
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
	if names["TCP.CurrentEstablished"] != 1 || len(maps.Collect(server.Gauges())) != 13 {
		t.Errorf("gauges %v", maps.Collect(server.Gauges()))
	}
}

// TestHeldACKs: an ACK that was not sent is not counted as sent.
func TestHeldACKs(t *testing.T) {
	server, client, _ := cards(t, 1)
	s, c := pair(t, server, client)
	buf := make([]byte, 1)
	for range 100 { // the ACK is carried by the answer
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
		return server.Stats().TxPackets == sent && names["NICs.Tx.Packets"] == sent &&
			names["Link.TxPackets"] == sent &&
			names["ACK.Saved"] == server.ACKStats().Saved
	})
}

// TestCountersNeverFall reads the counters while ACKs are held, sent and saved.
func TestCountersNeverFall(t *testing.T) {
	server, client, _ := cards(t, 1)
	s, c := pair(t, server, client)
	exchanged := make(chan error, 1)
	go func() {
		buf := make([]byte, 1)
		for range 1000 {
			for _, conns := range [][2]net.Conn{{c, s}, {s, c}} {
				if _, err := conns[0].Write(buf); err != nil {
					exchanged <- err
					return
				}
				if _, err := io.ReadFull(conns[1], buf); err != nil {
					exchanged <- err
					return
				}
			}
		}
		exchanged <- nil
	}()
	last := map[string]uint64{}
	see := func(name string, n uint64) {
		if n < last[name] {
			t.Fatalf("%s fell from %d to %d", name, last[name], n)
		}
		last[name] = n
	}
	for {
		for name, n := range server.Counters() {
			see(name, n)
		}
		st := server.Stats()
		see("TxPackets", st.TxPackets)
		see("TxBytes", st.TxBytes)
		see("IPSent", st.IPSent)
		select {
		case err := <-exchanged:
			must(t, err)
			return
		default:
		}
	}
}
